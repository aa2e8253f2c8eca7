// @ts-check
import { get, post } from './api.js';
import { h } from './dom.js';
import { lastPart, remember, remembered, word } from './format.js';
import { dialog, tried } from './keys.js';
import { server } from './server.js';

/** Ask how a new conversation is to be, and open it. */
export function newConversation() {
  const directory = /** @type {HTMLInputElement} */ (h('input', { id: 'directory', name: 'working_directory', required: true, list: 'directories', value: remembered('directory', ''), placeholder: '/home/you/project', spellcheck: 'false', autocomplete: 'off', oninput: () => complete() }));
  const found = h('datalist', { id: 'directories' });
  const model = select('model', server.models.map((each) => [each.name, each.displayName || each.name.replace('models/', '')]), server.info.defaultModel ?? '');
  const { restrictedAvailable, workspaceAvailable } = server.info.sandbox ?? {};
  const modes = [restrictedAvailable && 'MODE_RESTRICTED', workspaceAvailable && 'MODE_WORKSPACE', 'MODE_UNRESTRICTED'].filter(Boolean);
  const mode = select('mode', modes.map((each) => [each, word(each, 'MODE')]), server.info.defaultMode ?? modes[0]);
  const policy = select('policy', [['APPROVAL_POLICY_ASK_WRITES', 'ask before writes'], ['APPROVAL_POLICY_ASK_ALL', 'ask before each tool'], ['APPROVAL_POLICY_AUTO', 'never ask']], remembered('policy', 'APPROVAL_POLICY_ASK_WRITES'));
  const instructions = /** @type {HTMLTextAreaElement} */ (h('textarea', { id: 'instructions', name: 'instructions', rows: 2, placeholder: 'Optional: background for the agent, or its role' }));
  let asked = 0;
  async function complete() {
    const mine = ++asked, folder = directory.value.replace(/[^/]*$/, '') || '/';
    try {
      const { entries = [] } = await get('directories:browse', { path: folder, pageSize: 50 });
      if (mine === asked) found.replaceChildren(...entries.filter((/** @type {any} */ each) => each.directory).map((/** @type {any} */ each) => h('option', { value: `${folder}${each.name}` })));
    } catch { /* a path that is not there yet */ }
  }
  const make = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const text = instructions.value.trim();
    const answer = await tried(() => post('conversations', {
      workingDirectory: directory.value, model: model.value, mode: mode.value, approvalPolicy: policy.value, ...(text && { instructions: { text } }),
    }));
    if (!answer) return;
    remember('directory', directory.value);
    remember('policy', policy.value);
    box.close();
    location.hash = `#/c/${lastPart(answer.conversation.name)}`;
  };
  const box = dialog('New conversation', h('form', { onsubmit: make },
    labelled('Working directory on the server', directory), found,
    h('div.two', {}, labelled('Model', model), labelled('Mode', mode)), labelled('Approval', policy), labelled('Instructions', instructions),
    h('p.small', {}, 'Restricted: tools can only read, and have no network. Workspace: they can also change files beneath the directory. Unrestricted: they have all rights of the server’s user.'),
    h('div.row.end', {}, h('button.primary', { type: 'submit' }, 'Start'))));
  directory.focus();
  complete();
  if (!directory.value) suggest(directory);
}

/** The directory of the latest conversation, for a browser that remembers none. @param {HTMLInputElement} field */
async function suggest(field) {
  try {
    const [{ conversations = [] }, here] = await Promise.all([get('conversations', { pageSize: 1, orderBy: 'update_time desc' }), get('directories:browse', { pageSize: 1 })]);
    if (!field.value) field.value = conversations[0]?.workingDirectory ?? here.path ?? '';
  } catch { /* then it is typed */ }
}

/** @param {string} id @param {[string, string][]} options @param {string} value */
function select(id, options, value) {
  const made = /** @type {HTMLSelectElement} */ (h('select', { id, name: id }, options.map(([each, text]) => h('option', { value: each }, text))));
  made.value = value;
  if (made.selectedIndex < 0) made.selectedIndex = 0;
  return made;
}

/** @param {string} text @param {HTMLElement} input */
const labelled = (text, input) => h('div.field', {}, h('label', { for: input.id }, text), input);
