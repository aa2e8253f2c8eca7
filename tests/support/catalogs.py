"""A catalog of one model (ports.ModelCatalog)."""

from actors.core.errors import ErrorKind, LlmFailure
from actors.ports import CancelToken, Model, ModelInfo


class OneModelCatalog:
    """Offers `model` by its name, and `small` for small requests."""

    def __init__(self, model: Model, small: Model | None = None) -> None:
        self._model = model
        self._small = small
        self.forgotten: list[str] = []

    @property
    def default(self) -> str:
        return self._model.info.name

    def list(self) -> tuple[ModelInfo, ...]:
        return (self._model.info,)

    def get(self, name: str) -> Model | None:
        return self._model if name == self.default else None

    def offers(self, name: str) -> bool:
        return self.get(name) is not None

    def undecided(self, name: str) -> bool:
        return False

    def learn(self, name: str, cancel: CancelToken) -> None:
        pass

    def measure(self, name: str, cancel: CancelToken) -> None:
        pass

    def refusal(self, name: str) -> LlmFailure:
        text = f"model {name!r} is not available; available models: {self.default}"
        return LlmFailure(ErrorKind.INVALID_REQUEST, text)

    def small(self, name: str) -> Model | None:
        return self._small

    def forget(self, conversation_id: str) -> None:
        self.forgotten.append(conversation_id)
