// @ts-check
// JSON as nested lists, with the JSON that its strings contain, such as the input of a tool call.

import { h } from './dom.js';
import { coded } from './markdown.js';

const DEEPEST = 16, MOST = 200, FOLDED = 12;

/** @param {string} json @param {string} name */
export function structure(json, name) {
  const value = contained(json);
  return coded(json, name, value === undefined ? h('pre', { tabindex: 0 }, h('code', {}, json)) : h('div.tree', { tabindex: 0, role: 'group', 'aria-label': name }, nested(value, 0)));
}

/** The array or object that a text is the JSON of; undefined if it is not. @param {string} text @returns {any} */
function contained(text) {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** @param {any} value @param {number} depth @returns {HTMLElement} */
function nested(value, depth) {
  if (typeof value === 'string') {
    const inner = depth < DEEPEST ? contained(value) : undefined;
    return inner === undefined ? h('span.text', {}, value || '""') : nested(inner, depth);
  }
  if (value === null || typeof value !== 'object') return h('span.plain-value', {}, String(value));
  const entries = Object.entries(value), listed = Array.isArray(value);
  if (!entries.length) return h('span.plain-value', {}, listed ? '[]' : '{}');
  if (depth >= DEEPEST) return h('span.text', {}, JSON.stringify(value));
  const list = () => h(listed ? 'ol' : 'ul', listed ? { start: 0 } : {}, entries.slice(0, MOST).map(([key, each]) => h('li', {}, !listed && h('b', {}, key), ' ', nested(each, depth + 1))),
    entries.length > MOST && h('li', {}, `… ${entries.length - MOST} more: copy to see all`));
  if (entries.length <= FOLDED || !depth) return list();
  const details = /** @type {HTMLDetailsElement} */ (h('details', { ontoggle: () => { if (details.childElementCount === 1) details.append(list()); } }, h('summary', {}, `${entries.length} ${listed ? 'entries' : 'fields'}`)));
  return details;
}
