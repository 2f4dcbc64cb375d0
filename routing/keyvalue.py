"""The nameserver's key-value table: its only state on disk (wire.md 3.8)."""

from rocketbed.routing.errors import ConfigNotFound, RoutingError
from rocketbed.wire.encoding.json_dialect import BodyError, dumps, loads
from rocketbed.world.api import World

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"


class KeyValueTable:
    """Namespace -> key -> value, in one JSON file if a path is given."""

    def __init__(self, world: World, path: str) -> None:
        self._world = world
        self._path = path
        self._table: dict[str, dict[str, str]] = {}

    def load(self) -> None:
        """Read the file, if there is one. Raises `RoutingError` when it is damaged."""
        if not self._path or not self._world.disk.exists(self._path):
            return
        text = self._read()
        try:
            table = loads(text)["configTable"] if text else {}
            self._table = {str(name): dict(keys) for name, keys in table.items()}
        except (BodyError, KeyError, TypeError, ValueError, AttributeError) as exc:
            raise RoutingError(
                f"{self._path} is no key-value table ({exc}): repair it or move it away"
            ) from exc

    def _read(self) -> bytes:
        try:
            file = self._world.disk.open(self._path, writable=False)
            try:
                return file.read_at(0, file.size())
            finally:
                file.close()
        except OSError as exc:
            raise RoutingError(f"{self._path} cannot be read: {exc.strerror}") from exc

    def get(self, namespace: str, key: str) -> str:
        """Return a value. Raises `ConfigNotFound`."""
        value = self._table.get(namespace, {}).get(key)
        if value is None:
            raise ConfigNotFound(f"No config item, Namespace: {namespace} Key: {key}")
        return value

    def namespace(self, name: str) -> dict[str, str]:
        """Return all keys of a namespace; empty if there is none."""
        return dict(self._table.get(name, {}))

    async def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value
        await self._store()

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, durably; a missing one is fine."""
        self._table.get(namespace, {}).pop(key, None)
        await self._store()

    async def _store(self) -> None:
        if not self._path:
            return
        disk = self._world.disk
        directory = self._path.rpartition("/")[0] or "."
        disk.makedirs(directory)
        temporary = f"{self._path}.tmp"
        if disk.exists(temporary):
            disk.unlink(temporary)
        file = disk.open(temporary, create=True)
        try:
            file.write_at(0, dumps({"configTable": self._table}))
            await file.sync()
        finally:
            file.close()
        disk.rename(temporary, self._path)
        await disk.sync_dir(directory)
