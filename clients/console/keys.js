// @ts-check
// Keys: what each does is said where it is bound, and listed on `?`.

import { h } from './dom.js';

/** @typedef {{key: string, about: string, section: string, run: (event: KeyboardEvent) => void}} Binding */

/** @type {Map<string, Binding>} */
const bindings = new Map();

/**
 * Bind a key while a view is there. Single letters do nothing while text is typed.
 * @param {import('./dom.js').Scope} scope @param {string} section
 * @param {Record<string, [string, (event: KeyboardEvent) => void]>} keys
 */
export function bind(scope, section, keys) {
  for (const [key, [about, run]] of Object.entries(keys)) {
    const mine = { key, about, section, run };
    bindings.set(key, mine);
    scope.add(() => { if (bindings.get(key) === mine) bindings.delete(key); });
  }
}

/** Whether the last key was one of a person who moves by keys: then no field takes the focus, which would eat the next. */
export let moving = false;

/** @param {EventTarget | null} target */
const typing = (target) => target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);

export function listen() {
  document.addEventListener('pointerdown', () => { moving = false; });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape') moving = !typing(event.target);
    if (event.defaultPrevented || event.isComposing || event.altKey) return;
    const name = `${event.ctrlKey || event.metaKey ? 'Ctrl+' : ''}${event.key}`;
    if (typing(event.target) && name.length === 1) return;
    if (document.querySelector('dialog[open]')) return;
    const field = typing(event.target) && /** @type {HTMLElement} */ (event.target);
    if (name === 'Escape' && field && !field.closest('.composer')) return field.blur(); // only the composer's Esc can cancel
    const found = bindings.get(name);
    if (!found) return;
    event.preventDefault();
    found.run(event);
  });
}

export function showKeys() {
  const sections = Map.groupBy ? Map.groupBy(bindings.values(), (each) => each.section) : new Map([['Keys', [...bindings.values()]]]);
  dialog('Keys', h('div.keys', {}, [...sections].map(([section, keys]) =>
    h('section', {}, h('h3', {}, section), h('dl', {}, keys.map((/** @type {Binding} */ each) => [
      h('dt', {}, h('kbd', {}, NAMES[each.key] ?? each.key)), h('dd', {}, each.about)]))))));
}

/** @type {Record<string, string>} */
const NAMES = { Escape: 'Esc', ArrowUp: '↑', ArrowDown: '↓', 'Ctrl+Enter': 'Ctrl Enter' };

/**
 * Show a dialog, which Esc closes.
 * @param {string} title
 * @param {...any} content
 * @returns {HTMLDialogElement}
 */
export function dialog(title, ...content) {
  const shown = /** @type {HTMLDialogElement} */ (h('dialog', { 'aria-label': title, onclose: () => shown.remove() },
    h('header', {}, h('h2', {}, title), h('button.plain', { type: 'button', 'aria-label': 'Close', onclick: () => shown.close() }, '✕')),
    h('div.dialog-body', {}, ...content)));
  document.body.append(shown);
  shown.showModal();
  return shown;
}

/** Say something for a moment, also to a screen reader. @param {string} text @param {string} [tone] */
export function toast(text, tone = 'info') {
  let box = document.querySelector('.toasts');
  if (!box) {
    box = h('div.toasts', { role: 'status', 'aria-live': 'polite' });
    document.body.append(box);
  }
  const made = h(`div.toast.${tone}`, {}, text);
  box.append(made);
  setTimeout(() => made.remove(), tone === 'error' ? 8_000 : 3_500);
}

/** Run a call, and say why it failed: in the dialog that is open, else for a moment. @template T @param {() => Promise<T>} action @returns {Promise<T | undefined>} */
export async function tried(action) {
  const box = [.../** @type {NodeListOf<HTMLDialogElement>} */ (document.querySelectorAll('dialog[open]'))].pop();
  try {
    const done = await action();
    for (const each of document.querySelectorAll('.toast.error, dialog .said')) each.remove();
    return done;
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    if (box?.open) refused(box, message);
    else toast(message, 'error');
    return undefined;
  }
}

/** Say in a dialog why a call failed: beneath the field that the message begins with, else above its buttons. @param {HTMLDialogElement} box @param {string} message */
function refused(box, message) {
  box.querySelector('.said')?.remove();
  const [, name, about] = /^(?:\w+\.)?(\w+)[^: ]*: (.+)$/s.exec(message) ?? [], field = name && /** @type {HTMLElement | null} */ (box.querySelector(`[name="${name}"]`));
  const said = h('p.said', { role: 'alert' }, field ? about : message), row = box.querySelector('.row.end');
  if (field) field.after(said);
  else if (row) row.before(said);
  else box.querySelector('.dialog-body')?.append(said);
  if (field) field.focus();
}

/** Ask before something that cannot be undone. @param {string} title @param {string} text @param {string} verb */
export function confirmed(title, text, verb) {
  return new Promise((resolve) => {
    const shown = dialog(title, h('p', {}, text), h('div.row.end', {},
      h('button', { type: 'button', onclick: () => shown.close() }, 'Keep'),
      h('button.danger', { type: 'button', autofocus: true, onclick: () => { resolve(true); shown.close(); } }, verb)));
    shown.addEventListener('close', () => resolve(false));
  });
}
