"""The core without a front: a lifecycle on fake plugins."""

import asyncio

from runtimeproxy.core.dispatcher import Dispatcher
from runtimeproxy.core.lifecycle import Lifecycle
from runtimeproxy.core.store import Store
from runtimeproxy.errors import Reason
from runtimeproxy.observe.events import CallTimes
from runtimeproxy.observe.metrics import Metrics
from tests.fakes.calls import FakeCall
from tests.fakes.plugins import FakePlugins


def _now() -> float:
    return asyncio.get_running_loop().time()


class Parts:
    """A lifecycle with a budget of 10 s on fake plugins, on the running loop's clock."""

    def __init__(self) -> None:
        self.plugins = FakePlugins()
        self.store = Store()
        self.metrics = Metrics(_now)
        self.dispatcher = Dispatcher(self.plugins, self.metrics, _now, 10.0)
        self.lifecycle = Lifecycle(self.store, self.dispatcher, self.metrics, ("skip", "true"), _now)


class Core(Parts):
    @property
    def now(self) -> float:
        return _now()

    @property
    def times(self) -> CallTimes:
        return self.metrics.calls[-1]

    async def run(self, call: FakeCall) -> list[str]:
        """Run a call and return its steps without their times."""
        await self.start(call)
        return [name for _, name in call.steps]

    def start(self, call: FakeCall) -> asyncio.Future[None]:
        call.proceed = self.lifecycle.proceed
        return self.lifecycle.proceed(call)

    def failures(self, plugin: str, hook_point: str, reason: Reason) -> int:
        return self.metrics.counted("hook_failures", hook_server=plugin, hook=hook_point, reason=reason.value)

    def fail_open(self) -> int:
        return self.metrics.total("hook_fail_open")


def moments(times: CallTimes) -> tuple[float | None, ...]:
    return (times.held, times.released, times.answered, times.done)
