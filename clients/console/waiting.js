// @ts-check
// Requests waiting for a person: approvals with their effect and possible rules, questions of tools as forms,
// client tool calls, and the queue. Also the rules that decide instead of a person.

import { call, get, path, post } from './api.js';
import { fill, h } from './dom.js';
import { callSummary, lastPart, ms, toolName, word } from './format.js';
import { dialog, tried } from './keys.js';
import { link } from './markdown.js';
import { textOf } from './transcript.js';
import { given } from './tool_card.js';

/** @param {import('./model.js').Conversation} conversation @param {boolean} readOnly @returns {HTMLElement[]} */
export function drawWaiting(conversation, readOnly) {
  const { approvals, questions, clientCalls, queue } = conversation;
  return [
    ...[...approvals.values()].map((each, index) => approval(each, index === 0, readOnly)),
    ...[...questions.values()].map((each) => question(each, readOnly)),
    ...[...clientCalls.values()].map(clientCall),
    ...(queue.size ? [queued([...queue.values()], readOnly)] : []),
  ];
}

/** @param {any} each a PendingApproval @param {boolean} first @param {boolean} readOnly */
function approval(each, first, readOnly) {
  const note = /** @type {HTMLInputElement} */ (h('input', { type: 'text', placeholder: 'A note for the agent (optional)', 'aria-label': 'Note for the agent', maxlength: 1024 }));
  const id = lastPart(each.name);
  const rules = (each.suggestions ?? []).map((/** @type {any} */ rule, /** @type {number} */ index) =>
    h('label.rule', {}, h('input', { type: 'radio', name: `rule-${id}`, value: String(index) }), h('span', {}, ruleText(rule))));
  const decide = (/** @type {string} */ decision) => tried(() => {
    const chosen = /** @type {HTMLInputElement | null} */ (card.querySelector(`input[name="rule-${CSS.escape(id)}"]:checked`));
    const rule = chosen && chosen.value !== '' ? each.suggestions[Number(chosen.value)] : undefined;
    const action = decision === 'APPROVAL_DECISION_DENY' ? 'ACTION_DENY' : 'ACTION_ALLOW';
    return post(`${path(each.name)}:resolve`, { decision, ...(note.value && { note: note.value }), ...(rule && { rule: subject(rule, action) }) });
  });
  const upgrade = each.modeUpgrade;
  const card = h('section.ask', { 'aria-label': 'Approval', 'data-approval': each.name },
    h('header', {}, h('span.dot'), h('h3', {}, upgrade ? `May the agent work in ${word(upgrade.mode, 'MODE')} mode?` : `May the agent run ${toolName(each.toolCall?.tool)}?`),
      each.rule && h('span.badge', { title: 'The rule that requires approval' }, ruleText(each.rule))),
    upgrade ? h('p', {}, upgrade.reason) : given(each.toolCall ?? {}),
    !readOnly && rules.length > 0 && h('fieldset.rules', {}, h('legend', {}, 'And from now on'),
      h('label.rule', {}, h('input', { type: 'radio', name: `rule-${id}`, value: '', checked: true }), h('span', {}, 'ask again')), rules),
    !readOnly && h('div.row', {}, note,
      h('button.danger', { type: 'button', 'data-key': first && 'd', onclick: () => decide('APPROVAL_DECISION_DENY') }, 'Deny ', first && h('kbd', {}, 'd')),
      h('button.primary', { type: 'button', 'data-key': first && 'a', onclick: () => decide('APPROVAL_DECISION_APPROVE') }, 'Approve ', first && h('kbd', {}, 'a'))));
  return card;
}

/** @param {any} rule an ApprovalRule */
export function ruleText(rule) {
  const verb = { ACTION_ALLOW: 'allow', ACTION_ASK: 'ask for', ACTION_DENY: 'deny' }[/** @type {'ACTION_ALLOW'} */ (rule.action)] ?? '';
  if (rule.commandPrefix) return `${verb} commands that begin with “${rule.commandPrefix}”`;
  if (rule.command) return `${verb} exactly “${rule.command}”`;
  if (rule.path) return `${verb} files beneath ${rule.path}`;
  if (rule.mcpServer) return `${verb} the MCP server ${rule.mcpServer}`;
  return `${verb} the tool ${toolName(rule.tool)}`;
}

/** List the rules that apply to a conversation; its own can be deleted. @param {import('./model.js').Conversation} conversation */
export async function showRules(conversation) {
  const place = h('div');
  const read = async () => {
    const { approvalRules = [] } = await get(`${path(conversation.name)}/approvalRules`, { pageSize: 1000 });
    fill(place, approvalRules.length ? h('ul.rule-list', {}, approvalRules.map((/** @type {any} */ each) => h('li', {}, h('span', {}, ruleText(each)), each.name.startsWith('approvalRules/')
      ? h('span.badge', { title: 'From the settings of the server' }, 'operator')
      : h('button.plain.small', { type: 'button', 'aria-label': `Delete: ${ruleText(each)}`, onclick: () => tried(() => call('DELETE', path(each.name)).then(read)) }, 'Delete'))))
      : h('p', {}, 'No rules yet: choose one when the agent asks for approval.'));
  };
  if (await tried(() => read().then(() => true))) dialog('Approval rules', place, h('p.small', {}, 'If several match, deny takes precedence over ask, and ask over allow.'));
}

/** @param {any} rule @param {string} action */
function subject(rule, action) {
  const { tool, command, commandPrefix, path: beneath, mcpServer } = rule;
  return { action, ...(tool && { tool }), ...(command && { command }), ...(commandPrefix && { commandPrefix }), ...(beneath && { path: beneath }), ...(mcpServer && { mcpServer }) };
}

/** @param {any} each a Question @param {boolean} readOnly */
function question(each, readOnly) {
  const schema = each.requestedSchema, fields = schema ? propertiesOf(schema) : [];
  const inputs = fields.map(([name, about]) => field(name, about, (schema.required ?? []).includes(name)));
  const answer = (/** @type {any} */ body) => tried(() => post(`${path(each.name)}:answer`, body));
  const form = /** @type {HTMLFormElement} */ (h('form.question', {
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      const content = Object.fromEntries(inputs.map(({ name, value }) => [name, value()]).filter(([, value]) => value !== undefined));
      answer(schema ? { content } : {});
    },
  }, inputs.map((input) => input.element),
  each.url && h('p', {}, link(each.url, each.url)),
  !readOnly && h('div.row.end', {}, h('button', { type: 'button', onclick: () => answer({ decline: true }) }, 'Decline'),
    h('button.primary', { type: 'submit' }, each.url ? 'I have opened it' : 'Answer'))));
  return h('section.ask', { 'aria-label': 'Question' },
    h('header', {}, h('span.dot'), h('h3', {}, each.mcpServer ? `${each.mcpServer} asks` : 'A tool asks'),
      each.deadline && h('span.badge', {}, `answer by ${new Date(ms(each.deadline)).toLocaleTimeString()}`)),
    h('p.plain', {}, each.message), form, h('p.small', {}, 'This text comes from the MCP server. Your answer goes to it and is kept in the log: do not enter secrets.'));
}

/** @param {any} schema @returns {[string, any][]} */
function propertiesOf(schema) {
  const properties = schema.properties ?? {}, order = schema.propertyOrder ?? Object.keys(properties);
  return order.filter((/** @type {string} */ each) => properties[each]).map((/** @type {string} */ each) => [each, properties[each]]);
}

/** @param {string} name @param {any} about @param {boolean} required @returns {{name: string, element: HTMLElement, value: () => any}} */
function field(name, about, required) {
  const id = `field-${crypto.randomUUID()}`, title = about.title ?? name;
  /** @type {any} */
  let input;
  let value = () => (input.value === '' ? undefined : input.value);
  const choices = about.enum ?? about.oneOf?.map((/** @type {any} */ each) => each.const);
  if (about.type === 'boolean') {
    input = h('input', { type: 'checkbox', id, checked: about.default === true });
    value = () => input.checked;
  } else if (choices) {
    const labels = about.enumNames ?? about.oneOf?.map((/** @type {any} */ each) => each.title) ?? choices;
    input = h('select', { id, required }, !required && h('option', { value: '' }, '–'), choices.map((/** @type {string} */ each, /** @type {number} */ index) => h('option', { value: each, selected: each === about.default }, labels[index] ?? each)));
  } else if (about.type === 'array') {
    const items = about.items?.enum ?? about.items?.anyOf?.map((/** @type {any} */ each) => each.const) ?? [];
    input = h('select', { id, multiple: true }, items.map((/** @type {string} */ each) => h('option', { value: each }, each)));
    value = () => [...input.selectedOptions].map((/** @type {any} */ each) => each.value);
  } else if (about.type === 'number' || about.type === 'integer') {
    input = h('input', { type: 'number', id, required, step: about.type === 'integer' ? 1 : 'any', min: about.minimum, max: about.maximum, value: about.default ?? '' });
    value = () => (input.value === '' ? undefined : Number(input.value));
  } else input = h('input', { type: 'text', id, required, maxlength: about.maxLength, value: about.default ?? '' });
  return { name, value, element: h('div.field', {}, h('label', { for: id }, title, required && ' *'), input, about.description && h('p.small', {}, about.description)) };
}

/** @param {any} each a ClientToolCallChanged */
function clientCall(each) {
  return h('section.ask.quiet', { 'aria-label': 'Client tool call' }, h('header', {}, h('span.dot'), h('h3', {}, `A program is asked to run ${toolName(each.call.tool)}`),
    each.deadline && h('span.badge', {}, `answer by ${new Date(ms(each.deadline)).toLocaleTimeString()}`)), h('code', {}, callSummary(each.call)));
}

/** @param {any[]} messages @param {boolean} readOnly */
function queued(messages, readOnly) {
  return h('section.queue', { 'aria-label': 'Queue' }, messages.map((each, index) => h('div.queued', {},
    h('span.badge', {}, each.message.delivery === 'DELIVERY_STEER' ? 'steer' : 'follow-up'), h('span.plain', {}, textOf(each.message)),
    !readOnly && h('button.plain.small', { type: 'button', 'data-key': index === messages.length - 1 && 'w', onclick: () => tried(() => post(`${path(each.message.name)}:withdraw`)) }, 'Withdraw ', index === messages.length - 1 && h('kbd', {}, 'w')))));
}
