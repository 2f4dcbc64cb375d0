"""The web service: orders go into a topic, a listener in the same loop takes them out again.

NAMESERVERS=host:9876 uvicorn kitchen.app:app
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request

from rocketbed.aio import Consumer, Message, Producer, Received, Sent

TOPIC = "meals"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Clients live as long as the service does."""
    nameservers = os.environ["NAMESERVERS"]
    app.state.cooked = set()
    async with (
        Producer(nameservers=nameservers, group="waiter", timeout_s=20) as producer,
        Consumer(nameservers=nameservers, group="kitchen") as consumer,
    ):
        app.state.producer = producer
        await consumer.subscribe(TOPIC, start="first")

        async def cook(received: Received) -> None:
            app.state.cooked.add(received.body.decode())

        cooking = asyncio.create_task(consumer.listen(cook))
        yield
        consumer.stop_listening()
        await cooking


app = FastAPI(lifespan=lifespan)


@app.post("/meals/{name}", status_code=201)
async def order(name: str, request: Request) -> None:
    """Take an order; 503 where it may not be stored."""
    outcome = await request.app.state.producer.send(Message(TOPIC, name.encode()))
    if not isinstance(outcome, Sent):
        raise HTTPException(503, outcome.reason)


@app.get("/meals")
async def cooked(request: Request) -> list[str]:
    """What was cooked here."""
    return sorted(request.app.state.cooked)
