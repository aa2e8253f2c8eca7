// One conversation of the soak, over Node: says things, waits or cancels, and prints what it was told, a line each.
import { Bedrock } from '../../clients/node/bedrock.js';

const [workingDirectory, prefix] = process.argv.slice(2);
const tell = (kind, fields) => console.log(JSON.stringify({ kind, ...fields }));
let stopping = false;
process.stdin.resume().on('end', () => (stopping = true));

const bedrock = new Bedrock({ timeout: 20_000 });
try {
  const { name } = await bedrock.create({ workingDirectory, mode: 'MODE_UNRESTRICTED' });
  tell('created', { conversation: name });
  const conversation = bedrock.conversation(name);
  for (const [number, what] of ['say', 'slow', 'tools', 'slow', 'say'].entries()) {
    if (stopping) break;
    const token = `t-${prefix}-${number}`;
    tell('sending', { conversation: name, token });
    const run = await conversation.send(`#do ${what} ${token}`, { delivery: 'DELIVERY_FOLLOW_UP' });
    tell('accepted', { conversation: name, token, message: run.message.name, delivery: 'follow_up' });
    if (number % 2) await conversation.cancel();
    else for await (const event of run) if (event.runStopped) break;
  }
} catch (error) {
  tell('gone', { error: `${error.code} ${error.message}` });
} finally {
  bedrock.close();
  process.stdin.destroy();
}
