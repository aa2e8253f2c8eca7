// @ts-check
// Builds the page. Every string becomes a text node or a known attribute, never markup: text of a model or a tool
// cannot become an element, and the page's content policy forbids it, too.

/** @typedef {Node | string | number | false | null | undefined} Part */
/** @typedef {Part | Part[] | Part[][]} Child */

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/**
 * Text for display: characters that reorder or hide text are made visible, so that text cannot deceive.
 * @param {unknown} text
 */
export const shown = (text) =>
  String(text).replace(HIDDEN, (found) => `⟨${found.codePointAt(0)?.toString(16).toUpperCase().padStart(4, '0')}⟩`);

/**
 * Create an element: `h('button.primary', {onclick}, 'Send')`.
 * @param {string} spec tag and classes
 * @param {Record<string, any>} [props] `on…` are listeners, `style` an object, true and false set and remove
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function h(spec, props = {}, ...children) {
  const [tag, ...classes] = spec.split('.');
  return /** @type {HTMLElement} */ (filled(document.createElement(tag), classes, props, children));
}

/**
 * The same for SVG.
 * @param {string} spec
 * @param {Record<string, any>} [props]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function s(spec, props = {}, ...children) {
  const [tag, ...classes] = spec.split('.');
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  return /** @type {SVGElement} */ (filled(made, classes, props, children));
}

/** @param {Element} element @param {string[]} classes @param {Record<string, any>} props @param {Child[]} children */
function filled(element, classes, props, children) {
  if (classes.length) element.classList.add(...classes);
  for (const [name, value] of Object.entries(props)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, each] of Object.entries(value)) style(element, key, each);
    else if (name === 'value' || name === 'checked' || name === 'disabled') /** @type {any} */ (element)[name] = value;
    else element.setAttribute(name, value === true ? '' : shown(value));
  }
  append(element, children);
  return element;
}

/** @param {Element} element @param {string} key @param {unknown} value */
function style(element, key, value) {
  /** @type {HTMLElement} */ (element).style.setProperty(key, String(value));
}

/** @param {Element} parent @param {Child[]} children */
function append(parent, children) {
  for (const child of children.flat(3)) {
    if (child === false || child === null || child === undefined || child === '') continue;
    parent.append(child instanceof Node ? child : shown(child));
  }
}

/**
 * Replace an element's children.
 * @template {Element} T
 * @param {T} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
  return parent;
}

/** @type {Set<() => void>} */
let due = new Set();

/**
 * Call a function once in the next frame, however often it is requested before.
 * @param {() => void} draw
 */
export function nextFrame(draw) {
  if (!due.size) {
    const flush = () => {
      const now = due;
      due = new Set();
      for (const each of now) each();
    };
    if (document.hidden) setTimeout(flush, 250);
    else requestAnimationFrame(flush);
  }
  due.add(draw);
}

/** Whether two panes fit side by side. */
export const ROOM = matchMedia('(min-width: 2400px)');

/** The resources that a view uses until it closes. */
export class Scope {
  constructor() {
    /** @type {(() => void)[]} */
    this.ends = [];
    this.over = false;
  }

  /** @param {() => void} end */
  add(end) {
    this.ends.push(end);
  }

  /** @param {number} ms @param {() => void} tick */
  every(ms, tick) {
    const timer = setInterval(tick, ms);
    this.add(() => clearInterval(timer));
  }

  close() {
    this.over = true;
    for (const end of this.ends.splice(0)) end();
  }
}

/** @param {string} d @param {string} [title] */
export function icon(d, title) {
  return s('svg.icon', { viewBox: '0 0 20 20', 'aria-hidden': title ? undefined : 'true', role: title && 'img' },
    title && s('title', {}, title), s('path', { d }));
}

export const ICONS = {
  plus: 'M10 4v12M4 10h12',
  search: 'M9 3.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11zM13 13l4 4',
  send: 'M3.5 10 17 3.5 12 17l-2.5-5.5zM9.5 11.5 17 3.5',
  stop: 'M5.5 5.5h9v9h-9z',
  more: 'M4.5 10h.01M10 10h.01M15.5 10h.01',
  close: 'M5 5l10 10M15 5 5 15',
  copy: 'M7 7h9v9H7zM4 13V4h9',
  image: 'M3.5 4.5h13v11h-13zM3.5 13l4-4 3.5 3.5 2-2 3.5 3.5M12.5 8h.01',
  back: 'M12 4.5 6.5 10l5.5 5.5',
  chevron: 'M8 5.5 12.5 10 8 14.5',
  check: 'M4 10.5 8 14.5 16 6',
};
