// Draws each text in every field of every message, and says what of it became more than text.
async ([payloads]) => {
  window.violations = [];
  document.addEventListener('securitypolicyviolation', (event) => window.violations.push(event.violatedDirective + event.sourceFile));
  const { Conversation } = await import('/console/model.js'), { Transcript } = await import('/console/transcript.js');
  const { drawWaiting, ruleText } = await import('/console/waiting.js'), { markdown } = await import('/console/markdown.js');
  const { structure } = await import('/console/structure.js');
  const { runsOf } = await import('/console/runs.js'), { table } = await import('/console/operator.js');
  const box = document.createElement('div');
  document.body.append(box);
  payloads.forEach((text, index) => {
    const name = `conversations/${text}`, call = { toolUseId: text, tool: `tools/${text}`, input: index % 2 ? { cmd: text } : { path: text, patches: [{ operation: text, oldText: text, newText: text }], [text]: text } };
    const cycle = `${name}/requestCycles/${text}`, time = new Date().toISOString();
    const conversation = new Conversation(name, () => {});
    conversation.info = { name, title: text, slug: text, workingDirectory: text, labels: { [text]: text }, state: { kind: text, run: cycle, toolExecuting: { current: call } } };
    const events = [
      { messageAdded: { name: `${name}/1`, sequence: '1', role: 'ROLE_USER', content: [{ text }, { image: { attachment: `${name}/attachments/${text}`, mediaType: text } }], requestCycle: cycle, createTime: time } },
      { messageAdded: { name: `${name}/2`, sequence: '2', role: 'ROLE_AGENT', content: [{ reasoning: text }, { text }, { toolCall: call }], requestCycle: cycle, llmRequestId: text, usage: { inputTokens: text } } },
      { toolOutputDelta: { toolUseId: text, attempt: 1, text } },
      { messageAdded: { name: `${name}/3`, sequence: '3', role: 'ROLE_TOOL', content: [{ toolResult: { toolUseId: text, outcome: text, output: text, display: { diff: text } } }], requestCycle: cycle } },
      { messageAdded: { name: `${name}/4`, sequence: '4', role: 'ROLE_SYSTEM', systemKind: text, content: [{ text }] } },
      { messageAdded: { name: `${name}/5`, sequence: '5', role: 'ROLE_ERROR', content: [{ text }] } },
      { stateChanged: { state: { kind: 'STATE_KIND_AWAITING_SUB_AGENTS', run: cycle, awaitingSubAgents: { pending: [{ conversation: text, task: text }] } } } },
      { textDelta: { llmRequestId: 'r', attempt: 1, text } }, { textDelta: { llmRequestId: 'r', attempt: 1, text, reasoning: true } },
      { approvalChanged: { approval: { name: `${name}/approvals/${text}`, toolCall: call, suggestions: [{ action: 'ACTION_ALLOW', command: text }, { action: text, path: text }], rule: { tool: text } } } },
      { approvalChanged: { approval: { name: `${name}/approvals/2${text}`, modeUpgrade: { mode: text, reason: text } } } },
      { questionChanged: { question: { name: text, status: 'STATUS_PENDING', mcpServer: text, message: text, url: text, requestedSchema: { properties: { [text]: { title: text, description: text, enum: [text], default: text }, b: { type: 'string', default: text } } } } } },
      { clientToolCallChanged: { call, status: 'STATUS_PENDING' } },
      { queueChanged: { fate: 'FATE_QUEUED', message: { name: text, delivery: text, content: [{ text }] } } },
      { retrying: { llmRequestId: text, error: { message: text } } },
      { runStopped: { requestCycle: cycle, reason: 'STOP_REASON_ERROR', detail: text, error: { message: text } } },
    ].map((event, number) => ({ ...event, time, ...(event.textDelta || event.toolOutputDelta ? {} : { revision: String(number + 1) }) }));
    const transcript = new Transcript(conversation, () => {});
    events.slice(0, -1).forEach((event) => conversation.fold(event));
    box.append(transcript.element, ...drawWaiting(conversation, false));
    conversation.fold(events.at(-1));
    transcript.update(new Set(['all']));
    for (const details of transcript.element.querySelectorAll('details')) details.open = true;
    for (const run of runsOf(events)) box.append(table([text], [[run.text, ...[...run.rows.values()].flatMap((row) => [row.label, row.about])]]));
    box.append(structure(JSON.stringify({ [text]: [text, JSON.stringify({ [text]: text })] }), text), markdown(text), table([''], [[ruleText({ action: text, commandPrefix: text })]]));
  });
  await new Promise((done) => setTimeout(done, 500));
  const odd = [...box.querySelectorAll('script, iframe, object, embed, base, meta, link, style, form[action], [onerror], [onload], img:not([src^="/v1/"])')].map((each) => each.outerHTML);
  const links = [...box.querySelectorAll('a[href]')].filter((each) => !/^(https?:|mailto:)/.test(each.href) || (each.host !== location.host && !/noopener/.test(each.rel)));
  const bidi = /[\u202a-\u202e\u2066-\u2069]/.test(box.textContent);
  return { hit: window.hit, violations: window.violations, odd, links: links.map((each) => each.outerHTML), bidi, drawn: box.querySelectorAll('li').length };
}
