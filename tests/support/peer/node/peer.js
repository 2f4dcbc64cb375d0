// npm's `ali-ons` as a program: `peer.js NAMESERVERS produce GROUP`, which sends what lines of JSON
// on its input say, or `peer.js NAMESERVERS consume GROUP TOPIC FAILS`, whose function throws the
// first FAILS times that it is given a message. Each answer, and each message, is a line of JSON.

'use strict';

const readline = require('readline');
const { Consumer, Message, Producer } = require('ali-ons');

const [nameSrv, role, group, topic, fails] = process.argv.slice(2);
const httpclient = { request() { throw new Error('no HTTP here'); } };
const tell = line => process.stdout.write(JSON.stringify(line) + '\n');
const report = error => console.error(error.stack || error);

async function produce() {
  const producer = new Producer({ httpclient, nameSrv, producerGroup: group });
  producer.on('error', report);
  await producer.ready();
  tell({ ready: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const wanted = JSON.parse(line);
    const message = new Message(wanted.topic, wanted.tag, Buffer.from(wanted.body, 'base64'));
    if (wanted.keys.length) message.keys = wanted.keys;
    if (wanted.delay) message.delayTimeLevel = wanted.delay;
    try {
      const sent = await producer.send(message);
      tell({
        status: sent.sendStatus,
        msgId: sent.msgId,
        queueId: Number(sent.messageQueue.queueId),
        queueOffset: Number(sent.queueOffset),
      });
    } catch (error) {
      tell({ error: String(error) });
    }
  }
}

async function consume() {
  // It looks for other members every 10 s otherwise, as well as when a broker tells it.
  const consumer = new Consumer({
    httpclient, nameSrv, consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    rebalanceInterval: 1000, persistConsumerOffsetInterval: 500,
  });
  consumer.on('error', report);
  consumer.subscribe(topic, '*', async message => {
    const row = { body: message.body.toString('base64'), reconsumed: message.reconsumeTimes };
    tell({ ...row, topic: message.topic, tag: message.tags || '', keys: message.keys || '' });
    if (message.reconsumeTimes < Number(fails)) throw new Error('not yet');
  });
  await consumer.ready();
  tell({ ready: true });
  process.stdin.on('end', () => consumer.close().then(() => process.exit(0)));
  process.stdin.resume();
}

(role === 'produce' ? produce() : consume()).catch(error => {
  report(error);
  process.exit(1);
});
