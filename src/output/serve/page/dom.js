// Builds and updates elements. Text of the node is only ever set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined));
  return element;
}

/** An element with attributes, listeners (`onclick`) and children. */
export function h(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same for SVG. */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** Sets the text of an element if it has changed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets or removes an attribute if it has changed. */
export function setAttribute(element, name, value) {
  if (value === undefined || value === false || value === null) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

/**
 * Makes the children of an element those of the items: known ones are updated and moved, others created or removed.
 * `create(item)` returns `{ element, update(item) }`.
 */
export function keyed(parent, items, key, create) {
  const known = (parent.known ??= new Map());
  const wanted = new Set(items.map(key));
  for (const [name, child] of known) {
    if (!wanted.has(name)) {
      child.element.remove();
      known.delete(name);
    }
  }
  let before = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let child = known.get(name);
    if (!child) known.set(name, (child = create(item)));
    child.update?.(item);
    if (child.element === before) before = before.nextElementSibling;
    else parent.insertBefore(child.element, before);
  }
}

/** A button that copies a text, and says so. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "copy" }, label);
  button.addEventListener("click", async () => {
    const done = await copy(typeof text === "function" ? text() : text);
    const said = document.getElementById("said");
    said.textContent = done ? "copied" : "the browser does not allow copying; select the text instead";
    button.textContent = done ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages that are not served over TLS or from this host have no clipboard.
    const field = h("textarea", { readonly: true, "aria-hidden": "true" });
    field.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}
