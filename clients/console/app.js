// @ts-check
// Starts the console: signs in, draws what is around every view, and goes where the address says.

import { onSignedOut, session, signIn, signOut } from './api.js';
import { fill, h, icon, ICONS, Scope } from './dom.js';
import { feed } from './feed.js';
import { bind, listen, showKeys, toast } from './keys.js';
import { ConversationList } from './list.js';
import { server } from './server.js';
import { drawSignIn } from './sign_in.js';
import { drawAudit, drawNodes } from './operator.js';
import { drawConversation } from './conversation.js';
import { drawHome } from './home.js';
import { newConversation } from './new.js';

const root = /** @type {HTMLElement} */ (document.getElementById('app'));

/** @type {Scope | undefined} */
let shell;
/** @type {Scope | undefined} */
let view;
/** @type {string} */
let viewName = '';
/** @type {((rest: string[]) => void) | undefined} */
let moved;

async function start() {
  const link = /^#link=([\w-]+)$/.exec(location.hash);
  if (link) {
    history.replaceState(null, '', '/');
    try {
      await signIn({ link: link[1] });
    } catch (error) {
      return askToSignIn(/** @type {Error} */ (error).message);
    }
  }
  try {
    await server.read();
  } catch (error) {
    const { status, message } = /** @type {any} */ (error);
    return askToSignIn(status === 401 ? '' : message);
  }
  drawShell();
}

/** What was being filled in when the session ended, which only the same principal gets back. @type {HTMLDialogElement[]} */
const kept = [];
let keptOf = '';

/** @param {string} why */
function askToSignIn(why) {
  kept.push(.../** @type {NodeListOf<HTMLDialogElement>} */ (document.querySelectorAll('dialog[open]')));
  for (const each of kept) each.remove();
  keptOf = server.info?.principal ?? '';
  view?.close();
  shell?.close();
  viewName = '';
  document.title = 'Bedrock – sign in';
  drawSignIn(root, why, start);
}

function drawShell() {
  view?.close();
  shell?.close();
  viewName = '';
  shell = new Scope();
  const scope = shell;
  feed.open();
  const list = new ConversationList(scope);
  const main = h('main', { id: 'main', tabindex: -1 });
  const menu = h('nav.foot', { 'aria-label': 'Server' },
    server.operator && h('a', { href: '#/nodes' }, 'Nodes'),
    server.operator && h('a', { href: '#/audit' }, 'Audit'),
    h('button.plain', { type: 'button', onclick: showKeys }, 'Keys ', h('kbd', {}, '?')),
    h('button.plain', { type: 'button', onclick: leave }, 'Sign out'));
  fill(root, h('a.skip', { href: '#main', onclick: (/** @type {Event} */ event) => { event.preventDefault(); main.focus(); } }, 'Skip to the conversation'),
    connection(scope),
    h('div.shell', {},
      h('aside', { 'aria-label': 'Conversations' },
        h('header.brand', {}, h('a', { href: '#/', 'aria-label': 'Bedrock, start page' }, h('img', { src: '/console/icon.svg', alt: '', width: 26, height: 26 }), 'Bedrock'),
          server.readOnly ? h('span.badge', { title: 'The token that you signed in with is read-only' }, 'read-only')
            : h('button.primary.small', { type: 'button', title: 'New conversation (n)', onclick: () => newConversation() }, icon(ICONS.plus), 'New')),
        list.element, menu),
      main));
  bind(scope, 'Everywhere', {
    '?': ['show this list', showKeys],
    '/': ['search the conversations', () => list.search()],
    j: ['next conversation', () => list.step(1)],
    k: ['previous conversation', () => list.step(-1)],
    h: ['go to the start page, or back to the list', () => { location.hash = '#/'; }],
    ...(server.readOnly ? {} : { n: ['new conversation', () => newConversation()] }),
  });
  const go = () => route(main, list);
  addEventListener('hashchange', go);
  scope.add(() => removeEventListener('hashchange', go));
  go();
  for (const each of kept.splice(0).filter(() => server.info.principal === keptOf)) {
    each.removeAttribute('open');
    document.body.append(each);
    each.showModal();
  }
}

/** A part of an address, as it is where it is not one. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** @param {HTMLElement} main @param {ConversationList} list */
function route(main, list) {
  const [kind, ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  const name = kind === 'c' ? `c/${rest[0]}` : kind;
  document.body.classList.toggle('inside', kind !== '');
  list.select(kind === 'c' ? rest[0] : '');
  if (name === viewName && moved) return moved(rest.slice(1));
  view?.close();
  view = new Scope();
  viewName = name;
  moved = undefined;
  const place = fill(main, h('div.view'));
  const into = /** @type {HTMLElement} */ (place.firstChild);
  if (kind === 'c') moved = drawConversation(view, into, rest[0], rest.slice(1), list);
  else if (kind === 'nodes') drawNodes(view, into);
  else if (kind === 'audit') drawAudit(view, into);
  else drawHome(view, into, list);
  main.scrollTop = 0;
}

/** Says plainly when what is shown may be old. @param {Scope} scope */
function connection(scope) {
  const bar = h('div.connection', { role: 'status', hidden: true });
  let was = feed.status;
  scope.add(feed.onStatus((status) => {
    if (status === 'signed out') ended();
    bar.hidden = status !== 'lost';
    if (status === 'lost') fill(bar, h('span.spinner'), navigator.onLine ? 'The server cannot be reached; reconnecting… What you see may be out of date.' : 'This computer is offline. What you see may be out of date.');
    if (status === 'live' && was === 'lost') server.read().catch(() => {});
    if (status === 'live' && was === 'lost') toast('Connected again. Nothing was missed.', 'good');
    was = status;
  }));
  return bar;
}

async function leave() {
  await signOut();
  askToSignIn('');
}

/** A session that there was is over. */
function ended() {
  if (shell && !shell.over) askToSignIn('You have been signed out: the server restarted, or your token expired or was revoked.');
}

onSignedOut(ended);
session.onmessage = async () => {
  const { principal, role } = server.info;
  await server.read().catch(() => {});
  if (server.info.principal === principal && server.info.role === role) return;
  for (const each of document.querySelectorAll('dialog[open]')) each.remove();
  start();
};
addEventListener('pageshow', (event) => { if (event.persisted) location.reload(); });
addEventListener('hashchange', () => { if (location.hash.startsWith('#link=')) start(); });
listen();
start();
