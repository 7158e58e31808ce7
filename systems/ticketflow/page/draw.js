// Drawing. Texts go in as text: nothing on this page makes markup from a string, and its policy would stop what tried.

export const at = id => document.getElementById(id);

/** An element with attributes and children; a string among the children is text. */
export function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(attribute, "");
    else if (value !== false && value != null) node.setAttribute(attribute, value);
  }
  node.append(...children.filter(child => child != null));
  return node;
}

/** Says a text, and touches nothing where it is said already. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows or hides. */
export function shown(node, is) {
  if (node.hidden === is) node.hidden = !is;
}

/**
 * Makes the children of `list` those of `items`. Only what changed is drawn again, so nothing flickers, and what has the
 * focus keeps it.
 */
export function keep(list, items, key, draw) {
  const names = items.map(item => String(key(item)));
  const wanted = new Set(names);
  for (const node of [...list.children]) if (!wanted.has(node.dataset.key)) node.remove();
  const there = new Map([...list.children].map(node => [node.dataset.key, node]));
  items.forEach((item, index) => {
    const old = there.get(names[index]);
    const told = document.documentElement.lang + JSON.stringify(item);
    let node = old;
    if (old?.told !== told) {
      node = draw(item);
      node.dataset.key = names[index];
      node.told = told;
      if (old) replace(old, node);
      else if (list.drawn) node.classList.add("arrived");
    }
    if (list.children[index] !== node) list.insertBefore(node, list.children[index] ?? null);
  });
  list.drawn = true;
}

/** Another list is shown next: nothing of it has only just arrived. */
export function begin(list) {
  list.replaceChildren();
  list.drawn = false;
}

function replace(old, node) {
  const focused = old.contains(document.activeElement);
  old.replaceWith(node);
  if (focused) (node.matches("a, button") ? node : node.querySelector("a, button"))?.focus();
}
