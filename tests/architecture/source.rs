//! The agent's source, read with `syn`: imports, functions, method calls, and the tokens outside tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::modules::{FOLDERS, Folder};

pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) lines: usize,
    pub(crate) parameters: usize,
}

#[derive(Default)]
pub(crate) struct Source {
    pub(crate) path: String,
    /// Every path that begins with `crate`, without that word, and its line.
    pub(crate) imports: Vec<(Vec<String>, usize)>,
    pub(crate) functions: Vec<Function>,
    pub(crate) method_calls: Vec<(String, usize)>,
    /// String literals, with their quotes, that are a field `name` or the first argument of a call, in macros too.
    pub(crate) names: Vec<String>,
    pub(crate) has_module_docs: bool,
    pub(crate) type_names: Vec<String>,
    pub(crate) lines: usize,
    tokens: String,
}

impl Source {
    /// The folder under `src/` that it lies in; the crate's own two files lie in none.
    pub(crate) fn folder(&self) -> Option<&'static Folder> {
        FOLDERS.iter().find(|folder| self.is_in(folder.name))
    }

    /// The module that it belongs to: `folder/module` as the table lists it, or `folder`.
    pub(crate) fn module(&self) -> Option<String> {
        let folder = self.folder()?;
        let modules = folder.modules.iter().map(|module| format!("{}/{module}", folder.name));
        Some(modules.into_iter().find(|module| self.is_in(module)).unwrap_or_else(|| folder.name.to_owned()))
    }

    /// Whether it lies in this folder or module: `runtime`, `runtime/clock`.
    pub(crate) fn is_in(&self, path: &str) -> bool {
        self.path
            .strip_prefix("src/")
            .and_then(|rest| rest.strip_prefix(path))
            .is_some_and(|rest| rest.starts_with('/'))
    }

    pub(crate) fn mentions(&self, what: &[&str]) -> Vec<String> {
        let found = what.iter().filter(|text| self.tokens.contains(**text));
        found.map(|text| format!("{}: {text}", self.path)).collect()
    }
}

/// Every file under `src/`, read once for all tests.
pub(crate) static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&root, &mut files);
    files.sort();
    files.iter().map(|file| read(file, &root)).collect()
});

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn read(file: &Path, root: &Path) -> Source {
    let text = fs::read_to_string(file).unwrap();
    let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let relative = file.strip_prefix(root).unwrap();
    let mut source = Source {
        path: format!("src/{}", relative.display()),
        has_module_docs: text.starts_with("//!"),
        lines: text.lines().count(),
        ..Source::default()
    };
    Reader { source: &mut source }.visit_file(&parsed);
    source
}

struct Reader<'a> {
    source: &'a mut Source,
}

impl Reader<'_> {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let span = block.span();
        self.source.functions.push(Function {
            name: signature.ident.to_string(),
            lines: span.end().line - span.start().line + 1,
            parameters: signature.inputs.len(),
        });
    }
}

fn collect_names(tokens: TokenStream, found: &mut Vec<String>) {
    let mut before = [String::new(), String::new()];
    for token in tokens {
        if let TokenTree::Group(group) = &token {
            let after_word = before[1].ends_with(|last: char| last.is_alphanumeric());
            let is_call = after_word && group.delimiter() == Delimiter::Parenthesis;
            match group.stream().into_iter().next() {
                Some(TokenTree::Literal(first)) if is_call => found.push(first.to_string()),
                _ => {}
            }
            collect_names(group.stream(), found);
        } else if matches!(token, TokenTree::Literal(_)) && before == ["name", ":"] {
            found.push(token.to_string());
        }
        before = [std::mem::take(&mut before[1]), token.to_string()];
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

/// Every path of a `use`, groups written out.
fn flatten(tree: &syn::UseTree, before: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    let mut add = |name: String| found.push([before.as_slice(), &[name]].concat());
    match tree {
        syn::UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, found);
            before.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, found)),
        syn::UseTree::Name(name) => add(name.ident.to_string()),
        syn::UseTree::Rename(name) => add(name.ident.to_string()),
        syn::UseTree::Glob(_) => add("*".to_owned()),
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_file(&mut self, file: &'ast syn::File) {
        use quote::ToTokens;
        for item in &file.items {
            let attributes: &[syn::Attribute] = match item {
                syn::Item::Mod(module) => &module.attrs,
                syn::Item::Fn(function) => &function.attrs,
                syn::Item::Use(import) => &import.attrs,
                _ => &[],
            };
            if is_test(attributes) {
                continue;
            }
            let tokens = item.to_token_stream();
            self.source.tokens += &tokens.to_string();
            collect_names(tokens, &mut self.source.names);
            self.source.tokens.push('\n');
            self.visit_item(item);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.source.type_names.push(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.source.type_names.push(item.ident.to_string());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.source.type_names.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.source.type_names.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut paths = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut paths);
        let line = item.span().start().line;
        let own = paths.into_iter().filter(|path| path[0] == "crate" && path.len() > 1);
        self.source.imports.extend(own.map(|path| (path[1..].to_vec(), line)));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter().map(|segment| segment.ident.to_string());
        if segments.next().is_some_and(|first| first == "crate") {
            let rest: Vec<String> = segments.collect();
            if !rest.is_empty() {
                self.source.imports.push((rest, path.span().start().line));
            }
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.source.method_calls.push((call.method.to_string(), call.span().start().line));
        visit::visit_expr_method_call(self, call);
    }
}
