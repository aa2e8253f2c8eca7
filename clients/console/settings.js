// @ts-check
// The settings of a conversation: model and effort, mode, and approval policy.

import { call, path, post } from './api.js';
import { h } from './dom.js';
import { word } from './format.js';
import { tried } from './keys.js';
import { server } from './server.js';

const MODES = ['MODE_RESTRICTED', 'MODE_WORKSPACE', 'MODE_UNRESTRICTED'];
const POLICIES = /** @type {Record<string, string>} */ ({ APPROVAL_POLICY_AUTO: 'never asks', APPROVAL_POLICY_ASK_WRITES: 'asks before writes', APPROVAL_POLICY_ASK_ALL: 'asks before each tool' });

/** @param {import('./model.js').Conversation} conversation */
export function settings(conversation) {
  const { info, name } = conversation;
  const patch = (/** @type {string} */ mask, /** @type {any} */ body) => tried(() => call('PATCH', `${path(name)}?updateMask=${mask}`, body));
  const efforts = server.model(info.model)?.reasoningEfforts ?? [];
  const fixed = server.readOnly || Boolean(info.parent);
  return h('div.settings', {},
    choice('Model', info.model, server.models.map((each) => [each.name, each.displayName || each.name.replace('models/', '')]), fixed, (model) => patch('model', { model })),
    efforts.length > 0 && choice('Effort', info.generation?.reasoningEffort ?? '', [['', 'effort: default'], ...efforts.map((/** @type {string} */ each) => /** @type {[string, string]} */ ([each, `effort: ${word(each, 'REASONING_EFFORT')}`]))], fixed,
      (effort) => patch('generation.reasoningEffort', effort ? { generation: { reasoningEffort: effort } } : { generation: {} })),
    choice('Mode', info.mode, MODES.map((each) => [each, word(each, 'MODE')]), fixed, (mode) => tried(() => post(`${path(name)}:setMode`, { mode })), info.mode === 'MODE_UNRESTRICTED' ? 'careful' : ''),
    choice('Approval', info.approvalPolicy, Object.entries(POLICIES), fixed, (approvalPolicy) => patch('approvalPolicy', { approvalPolicy })));
}

/** @param {string} label @param {string} now @param {[string, string][]} options @param {boolean} fixed @param {(value: string) => any} change @param {string} [tone] */
function choice(label, now, options, fixed, change, tone = '') {
  const known = options.some(([value]) => value === now) ? options : [...options, /** @type {[string, string]} */ ([now, now])];
  const select = /** @type {HTMLSelectElement} */ (h(`select${tone && `.${tone}`}`, {
    'aria-label': label, title: label, disabled: fixed,
    onchange: async () => { if (!await change(select.value)) select.value = now; },
  }, known.map(([value, text]) => h('option', { value }, text))));
  select.value = now;
  return select;
}
