// @ts-check
import { signIn } from './api.js';
import { fill, h } from './dom.js';

/** @param {HTMLElement} root @param {string} why @param {() => void} then */
export function drawSignIn(root, why, then) {
  const field = /** @type {HTMLInputElement} */ (h('input', {
    type: 'password', id: 'token', autocomplete: 'off', spellcheck: 'false', required: true, 'aria-describedby': 'why', placeholder: 'Token',
  }));
  const said = h('p.said', { id: 'why', role: 'alert' }, why);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const token = field.value;
    field.value = '';
    try {
      await signIn({ token });
      then();
    } catch (error) {
      const { status, message } = /** @type {any} */ (error);
      fill(said, status === 401 ? 'The server does not accept this token.' : message);
      field.focus();
    }
  };
  fill(root, h('main.sign-in', {}, h('div.card', {},
    h('img', { src: '/console/icon.svg', alt: '', width: 48, height: 48 }),
    h('h1', {}, 'Bedrock'),
    h('p.lead', {}, 'Every conversation of your agents: what is running, where the time goes, and why it stopped.'),
    said,
    h('form', { onsubmit: submit }, h('label', { for: 'token' }, 'Sign in with a token'), field, h('button.primary', { type: 'submit' }, 'Sign in')),
    h('div.hint', {}, h('p', {}, 'On the server’s machine, this command opens the console, signed in:'), h('pre', { tabindex: 0 }, 'bedrock console')),
    h('p.small', {}, 'The token stays in the gateway’s memory, never in this page. When the gateway stops, the session ends.'))));
  field.focus();
}
