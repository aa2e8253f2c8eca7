// @ts-check
// The start page: waiting questions, running conversations, and an introduction for new users.

import { get, path, post } from './api.js';
import { fill, h, ROOM } from './dom.js';
import { feed } from './feed.js';
import { lastPart, ms, duration, slugOf, stateWords } from './format.js';
import { tried } from './keys.js';
import { newConversation } from './new.js';
import { server } from './server.js';

/** Demos of the demo model, and the view for each. @type {[string, string, string, string][]} */
const TRIES = [
  ['run sleep 2; echo it works', 'A tool that runs', 'It asks you first. Then watch the waterfall grow.', 'timeline'],
  ['count', 'A long answer', 'It streams for a minute: steer it, queue a message, cancel it.', ''],
  ['retry', 'A failure', 'The first attempt fails and is retried.', 'timeline'],
  ['agents', 'Sub-agents', 'Three of them work in parallel.', 'agents'],
];

/** @param {import('./dom.js').Scope} scope @param {HTMLElement} into @param {import('./list.js').ConversationList} list */
export function drawHome(scope, into, list) {
  const live = h('section.live', { 'aria-label': 'At work' });
  fill(into, h('div.home', {},
    h('h1', {}, 'What your agents are doing'),
    live,
    !server.readOnly && server.scripted && tries(),
    h('section', {}, h('h2', {}, 'What the console shows'), h('ul.what', {},
      h('li', {}, h('b', {}, 'Chat'), ' – write, steer, queue, approve and cancel, as in the terminal; both show the same conversation.'),
      h('li', {}, h('b', {}, 'Timeline'), ' – where the time of a run went: waiting, first token, tools, retries, and how fast a cancel stopped everything.'),
      h('li', {}, h('b', {}, 'Machine'), ' – the state machine itself, with the path that a run took.'),
      h('li', {}, h('b', {}, 'Log'), ' – every step as it was stored, with the verdict of verify and replay.'),
      h('li', {}, h('b', {}, 'Cost'), ' – tokens by kind, the cache, and what is left of the context window and the budget.'))),
    h('p.small', {}, 'Press ', h('kbd', {}, '?'), ' for all keys.')));
  const draw = () => {
    const works = (/** @type {any} */ each) => each.state?.busy || stateWords(each.state).tone === 'ask';
    const busy = list.order.filter(works).slice(0, 24), lately = ROOM.matches ? list.order.filter((each) => !works(each)).slice(0, 24) : [];
    fill(live, busy.length ? h('div.cards', {}, busy.map(card))
      : h('div.calm', {}, h('p', {}, list.bare ? 'No conversations yet.' : 'Nothing is running or waiting for you.'),
        !server.readOnly && h('button.primary', { type: 'button', onclick: newConversation }, 'Start a conversation')),
      lately.length > 0 && [h('h2', {}, 'Recent'), h('div.cards', {}, lately.map(card))]);
  };
  draw();
  scope.add(feed.watch(() => setTimeout(() => !scope.over && draw(), 60)));
  scope.every(1_000, draw);
}

/** @param {any} each a Conversation */
function card(each) {
  const { text, tone } = stateWords(each.state);
  return h(`a.card.${tone}`, { href: `#/c/${lastPart(each.name)}` }, h('span.state', {}, h('span.dot'), text), h('b', {}, each.title || slugOf(each)),
    h('span.small', {}, `${duration(Date.now() - ms(each.state?.enterTime))} in this state`));
}

function tries() {
  return h('section', {}, h('h2', {}, 'Try it'), h('p', {}, 'Without a key, a scripted model answers; everything around it is real.'),
    h('div.cards', {}, TRIES.map(([text, title, about, view]) => h('button.card', { type: 'button', onclick: () => start(text, view) }, h('b', {}, title), h('code', {}, text), h('span.small', {}, about)))));
}

/** @param {string} text @param {string} view */
async function start(text, view) {
  await tried(async () => {
    const { path: folder } = await get('directories:browse', { pageSize: 1 });
    const { conversation } = await post('conversations', { workingDirectory: folder, approvalPolicy: text === 'agents' ? 'APPROVAL_POLICY_AUTO' : 'APPROVAL_POLICY_ASK_WRITES' });
    await post(`${path(conversation.name)}:send`, { text });
    location.hash = `#/c/${lastPart(conversation.name)}${view ? `/${view}` : ''}`;
  });
}
