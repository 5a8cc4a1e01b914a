// The choice between light and dark, which the browser keeps for all pages of this host.

import { setAttribute } from "./dom.js";

const NAME = "gpumeter-theme";

function stored() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}

function store(value) {
  try {
    localStorage.setItem(NAME, value);
  } catch {
    // Without storage the choice lasts as long as the page.
  }
}

const show = (value) => setAttribute(document.documentElement, "data-theme", value || undefined);

/** Lets a select choose; without a choice the browser decides. */
export function followTheme(select) {
  select.value = stored();
  show(select.value);
  select.addEventListener("change", () => {
    store(select.value);
    show(select.value);
  });
}
