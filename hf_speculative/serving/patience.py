"""Close connections whose request headers do not arrive; uvicorn waits for them for ever."""

from uvicorn.protocols.http.auto import AutoHTTPProtocol

#: time for the headers of a request, from its first byte or the connection
HEADER_SECONDS = 10.0


class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's HTTP protocol with a time limit for headers."""

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEADER_SECONDS, self._hang_up)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and self._is_idle():
            self._timer = self.loop.call_later(HEADER_SECONDS, self._hang_up)
        super().data_received(data)
        if self._timer is not None and not self._is_idle():
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        """Whether no request is being read or answered."""
        return self.cycle is None or self.cycle.response_complete

    def _hang_up(self) -> None:
        self._timer = None
        if self._is_idle() and not self.transport.is_closing():
            self.transport.close()
