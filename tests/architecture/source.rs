//! The agent's source, read with `syn`: imports, functions, method calls, and the tokens outside tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::modules::{MODULES, Module};

pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) lines: usize,
    pub(crate) parameters: usize,
}

#[derive(Default)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) module: Option<String>,
    pub(crate) imports: Vec<(String, usize)>,
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
    pub(crate) fn module(&self) -> Option<&'static Module> {
        MODULES.iter().find(|module| Some(module.name) == self.module.as_deref())
    }

    pub(crate) fn is_in(&self, module: &str) -> bool {
        self.module.as_deref() == Some(module)
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
    let module = relative.components().next().unwrap().as_os_str().to_str().unwrap();
    let mut source = Source {
        path: format!("src/{}", relative.display()),
        module: (!module.ends_with(".rs")).then(|| module.to_owned()),
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
        if let syn::UseTree::Path(path) = &item.tree
            && path.ident == "crate"
        {
            let line = item.span().start().line;
            match &*path.tree {
                syn::UseTree::Path(inner) => self.source.imports.push((inner.ident.to_string(), line)),
                syn::UseTree::Name(inner) => self.source.imports.push((inner.ident.to_string(), line)),
                syn::UseTree::Group(group) => {
                    for tree in &group.items {
                        let name = match tree {
                            syn::UseTree::Path(inner) => inner.ident.to_string(),
                            syn::UseTree::Name(inner) => inner.ident.to_string(),
                            syn::UseTree::Rename(inner) => inner.ident.to_string(),
                            _ => continue,
                        };
                        self.source.imports.push((name, line));
                    }
                }
                syn::UseTree::Rename(inner) => self.source.imports.push((inner.ident.to_string(), line)),
                syn::UseTree::Glob(_) => {}
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter();
        if segments.next().is_some_and(|first| first.ident == "crate")
            && let Some(second) = segments.next()
        {
            self.source.imports.push((second.ident.to_string(), path.span().start().line));
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.source.method_calls.push((call.method.to_string(), call.span().start().line));
        visit::visit_expr_method_call(self, call);
    }
}
