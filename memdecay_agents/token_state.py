"""What is known about each token of one session: region, pin, clock, and the attention it received.

    registered   0 ................................ n_tokens
    computed     0 ................ computed_tokens            (KV exists or existed)

Logical positions never change: evicting pages leaves every array as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from memdecay_agents.arrays import BoolArray, FloatArray, IndexArray, RegionArray
from memdecay_agents.config import MemDecayConfig
from memdecay_agents.errors import ObservationError
from memdecay_agents.observations import Observation, RefreshRule
from memdecay_agents.region_table import RegionTable
from memdecay_agents.salience import local_salience
from memdecay_agents.spans import Span, SpanFlag, flags_of_tokens, regions_of_tokens
from memdecay_agents.surprisal import TokenCounts
from memdecay_kernels.implementations import native_library
from memdecay_kernels.native import host
from memdecay_kernels.native.host import HostColumns
from memdecay_kernels.terms import ObserveRule, TokenColumns

_COLUMNS = {
    "region": np.int8,
    "flags": np.int8,
    "pinned": np.bool_,
    "refreshed_at_ticks": np.int64,
    "ewma_mass": np.float32,
    "accumulated_relative": np.float32,
    "salience_sum": np.float32,
    "salience_weight": np.float32,
    "last_query_mass": np.float32,
    "key_norm": np.float32,
}
_CACHE_COLUMNS = tuple(name for name in _COLUMNS if name not in ("region", "flags", "pinned"))


class TokenState:
    """Per-token arrays of one session, n = ``n_tokens`` long; the properties are views, not copies.

    Args:
        config: clock unit, EWMA factor, salience and refresh parameters.
        refresh: when attention resets a token's clock; by default what ``config.policy`` needs.
    """

    def __init__(self, config: MemDecayConfig, refresh: RefreshRule | None = None) -> None:
        self.config = config
        self.table = RegionTable.of(config)
        self.refresh = refresh if refresh is not None else RefreshRule.for_config(config)
        self.rule = ObserveRule(
            ewma_factor=config.ewma_factor,
            salience_neighbours=config.salience_neighbours,
            salience_floor_relative=config.salience_floor_relative,
            salience_min_age_tokens=config.salience_min_age_tokens,
            refresh=self.refresh.kind,
            refresh_threshold=self.refresh.threshold,
        )
        self.reset()

    def reset(self) -> None:
        """Forget everything, as if newly made."""
        self.n_tokens = 0
        self.computed_tokens = 0
        self.clock_ticks = 0
        self.observed_queries = 0
        self.normed_tokens = 0
        """Tokens from here on have no key norm yet."""
        self.counts = TokenCounts()
        """The ids of the leading tokens, as far as they were told, and how often each occurs."""
        self.pins: frozenset[str] = frozenset()
        self.output_region = "scratchpad"
        self._columns: dict[str, np.ndarray] = {name: np.zeros(0, dtype) for name, dtype in _COLUMNS.items()}
        self._shown: HostColumns | None = None

    def reset_cache(self) -> None:
        """Forget clock and attention, keep the tokens with their regions and pins (after a preemption)."""
        self.computed_tokens = 0
        self.clock_ticks = 0
        self.observed_queries = 0
        self.normed_tokens = 0
        for name in _CACHE_COLUMNS:
            self._columns[name][:] = 0

    # --- tokens ---------------------------------------------------------------------------------

    def extend(self, n_tokens: int, *, spans: Sequence[Span] | None = None, region: str | None = None) -> None:
        """Register ``n_tokens`` more tokens, either cut by ``spans`` or all in one ``region``.

        With neither, they are in ``output_region``.

        Raises:
            SpanError: the spans do not partition the new tokens; nothing was registered.
            RegionError: unknown region; nothing was registered.
        """
        start, end = self.n_tokens, self.n_tokens + n_tokens
        if spans is not None:
            regions = regions_of_tokens(spans, start, n_tokens, self.config)
            flags = flags_of_tokens(spans)
        else:
            index = self.config.region_index(self.output_region if region is None else region)
            regions = np.full(n_tokens, index, dtype=np.int8)
            flags = np.zeros(n_tokens, dtype=np.int8)
        self.reserve(end)
        self._columns["region"][start:end] = regions
        self._columns["flags"][start:end] = flags
        self._columns["pinned"][start:end] = self._pinned(regions, flags)
        self._columns["refreshed_at_ticks"][start:end] = self.clock_ticks
        self.n_tokens = end

    def relabel(self, spans: Sequence[Span]) -> None:
        """Give the leading tokens the regions and flags of ``spans``, which partition [0, their end).

        Clocks and attention stay: a tag says what a token is, not what happened to it.

        Raises:
            SpanError: the spans do not partition a leading part of the registered tokens; nothing changed.
        """
        end = spans[-1].end if spans else 0
        regions = regions_of_tokens(spans, 0, min(end, self.n_tokens), self.config)
        self._columns["region"][:end] = regions
        self._columns["flags"][:end] = flags_of_tokens(spans)
        self._columns["pinned"][: self.n_tokens] = self._pinned(self.region, self.flags)
        self.counts.relabel(self.table.refers[regions])

    def learn(self, token_ids: Sequence[int]) -> None:
        """Take in the ids of all computed tokens; known ones are not read again. See `TokenCounts.learn`."""
        known, computed = self.counts.n_known, self.computed_tokens
        if known < computed:
            refers = self.table.refers[self._columns["region"][known:computed]]
            self.counts.learn(token_ids[known:computed], refers)

    def set_pins(self, pins: Collection[str]) -> None:
        """Pin these regions beside the ones that the configuration pins, for all tokens, old and new.

        Raises:
            RegionError: unknown region; nothing was changed.
        """
        for name in pins:
            self.config.region_index(name)
        self.pins = frozenset(pins)
        self._columns["pinned"][: self.n_tokens] = self._pinned(self.region, self.flags)

    def set_flags(self, start: int, end: int, flags: SpanFlag) -> None:
        """Add flags to the tokens [start, end), for instance ``SUPERSEDED`` once something replaces them."""
        self._columns["flags"][start : min(end, self.n_tokens)] |= np.int8(flags)
        self._columns["pinned"][: self.n_tokens] = self._pinned(self.region, self.flags)

    def truncate(self, n_tokens: int) -> None:
        """Rewind to the first ``n_tokens`` tokens. The clock goes on, evidence on kept ones stays."""
        if n_tokens >= self.n_tokens:
            return
        for column in self._columns.values():
            column[n_tokens : self.n_tokens] = 0
        self.n_tokens = n_tokens
        self.computed_tokens = min(self.computed_tokens, n_tokens)
        self.normed_tokens = min(self.normed_tokens, n_tokens)
        self.counts.truncate(n_tokens)

    def reserve(self, n_tokens: int) -> None:
        """Have room for ``n_tokens`` tokens, in whole pages, without registering any."""
        capacity = self._columns["region"].shape[0]
        if n_tokens <= capacity:
            return
        page = self.config.page_size_tokens
        new_capacity = -(-max(n_tokens, 2 * capacity, 64) // page) * page
        for name, column in self._columns.items():
            self._columns[name] = np.concatenate([column, np.zeros(new_capacity - capacity, column.dtype)])
        self._shown = None

    def _pinned(self, regions: RegionArray, flags: RegionArray) -> BoolArray:
        pinned = self.table.pinned.copy()
        for name in self.pins:
            pinned[self.config.region_index(name)] = True
        return np.asarray(pinned[regions] | (flags & np.int8(SpanFlag.PINNED) != 0), dtype=np.bool_)

    # --- time -----------------------------------------------------------------------------------

    def advance(self, ticks: int) -> None:
        """Let ``ticks`` of the clock pass."""
        self.clock_ticks += ticks

    def on_computed(self, n_new_positions: int, n_generated: int) -> None:
        """The engine computed KV for the next positions and sampled ``n_generated`` tokens.

        Advances the clock in its unit and starts the clocks of the new tokens, each at its own time.
        Positions that nobody registered are taken for generated ones, in ``output_region``.
        """
        start, end = self.computed_tokens, self.computed_tokens + n_new_positions
        if end > self.n_tokens:
            self.extend(end - self.n_tokens)
        written_at = self._columns["refreshed_at_ticks"]
        if self.config.clock_unit == "tokens":
            written_at[start:end] = np.arange(self.clock_ticks + 1, self.clock_ticks + n_new_positions + 1)
            self.clock_ticks += n_new_positions
        else:
            if self.config.clock_unit == "decode_steps":
                self.clock_ticks += n_generated
            written_at[start:end] = self.clock_ticks
        self.computed_tokens = end

    def on_decoded(self, n_steps: int) -> None:
        """So many decode steps: the same as `on_computed` with (1, 1) as often."""
        start, end = self.computed_tokens, self.computed_tokens + n_steps
        if end > self.n_tokens:
            self.extend(end - self.n_tokens)
        at = self.clock_ticks
        if self.config.clock_unit != "turns":
            self.clock_ticks += n_steps
            self._columns["refreshed_at_ticks"][start:end] = np.arange(at + 1, at + n_steps + 1)
        else:
            self._columns["refreshed_at_ticks"][start:end] = at
        self.computed_tokens = end

    def on_turn_start(self) -> None:
        """A new turn of the agent begins: one tick where the clock counts turns."""
        if self.config.clock_unit == "turns":
            self.clock_ticks += 1

    # --- evidence -------------------------------------------------------------------------------

    def observe(self, observation: Observation) -> None:
        """Take in one measurement: EWMA, accumulation, salience and refresh of the tokens it names.

        A measurement that stands for W queries counts exactly as W single ones with the same mass: the EWMA
        factor is compounded, accumulation and salience are weighted by W.

        Raises:
            ObservationError: it names a token that does not exist; no state changed.
        """
        index = observation.token_index
        if not index.size:
            return
        if int(index[-1]) >= self.n_tokens:
            raise ObservationError(
                where="attention observation",
                rule=f"it names token {int(index[-1])}, and the session has {self.n_tokens}",
                remedy="Report logical indices of this session's tokens.",
            )
        weight = observation.represented_queries
        library = native_library()
        if library is None:
            self._take_in(observation)
        else:
            host.observe_tokens(
                library, self.columns, index, observation.mass, observation.last_query_mass, self.rule, weight,
                self.clock_ticks,
            )  # fmt: skip
        self.observed_queries += weight
        norms = observation.key_norms
        if norms is not None and norms.size:
            self._columns["key_norm"][index[-norms.size :]] = norms
            self.normed_tokens = max(self.normed_tokens, int(index[-1]) + 1)

    def _take_in(self, observation: Observation) -> None:
        """The same without the native library."""
        config, weight = self.config, observation.represented_queries
        index, mass = observation.token_index, observation.mass
        relative = mass * np.float32(index.size)
        columns = self._columns
        keep = np.float32((1.0 - config.ewma_factor) ** weight)
        columns["ewma_mass"][index] = keep * columns["ewma_mass"][index] + (np.float32(1.0) - keep) * mass
        columns["accumulated_relative"][index] += np.float32(weight) * relative
        newest = observation.last_query_mass
        columns["last_query_mass"][index] = mass if newest is None else newest
        n_old = int(np.searchsorted(index, index[-1] - config.salience_min_age_tokens, side="right"))
        salience = local_salience(relative, neighbours=config.salience_neighbours, floor=config.salience_floor_relative)
        columns["salience_sum"][index[:n_old]] += np.float32(weight) * salience[:n_old]
        columns["salience_weight"][index[:n_old]] += np.float32(weight)
        columns["refreshed_at_ticks"][index[self.refresh.refreshed(mass, relative)]] = self.clock_ticks

    # --- views ----------------------------------------------------------------------------------

    @property
    def columns(self) -> TokenColumns[np.ndarray]:
        """The columns that evidence and scores are made of, [capacity] each; not copies."""
        if self._shown is None:
            self._shown = HostColumns(*(self._columns[name] for name in TokenColumns._fields))
        return self._shown

    def paged(self, name: str) -> np.ndarray:
        """A column cut into pages, [capacity in pages, page size]; unregistered tokens are 0."""
        return self._columns[name].reshape(-1, self.config.page_size_tokens)

    @property
    def region(self) -> RegionArray:
        """int8 [n]: region indices."""
        return self._columns["region"][: self.n_tokens]

    @property
    def flags(self) -> RegionArray:
        """int8 [n]: ``SpanFlag`` bits."""
        return self._columns["flags"][: self.n_tokens]

    @property
    def pinned(self) -> BoolArray:
        """bool [n]: pinned by region, by request or by flag (whether the policy heeds pins or not)."""
        return self._columns["pinned"][: self.n_tokens]

    @property
    def refreshed_at_ticks(self) -> IndexArray:
        """int64 [n]: clock when the token was written or last refreshed."""
        return self._columns["refreshed_at_ticks"][: self.n_tokens]

    @property
    def ewma_mass(self) -> FloatArray:
        """float32 [n]: moving average of the raw mass."""
        return self._columns["ewma_mass"][: self.n_tokens]

    @property
    def accumulated_relative(self) -> FloatArray:
        """float32 [n]: sum of the relative mass over all queries."""
        return self._columns["accumulated_relative"][: self.n_tokens]

    @property
    def salience_sum(self) -> FloatArray:
        """float32 [n]: salience times queries."""
        return self._columns["salience_sum"][: self.n_tokens]

    @property
    def salience_weight(self) -> FloatArray:
        """float32 [n]: queries that the salience comes from."""
        return self._columns["salience_weight"][: self.n_tokens]

    @property
    def last_query_mass(self) -> FloatArray:
        """float32 [n]: raw mass from the newest measurement that saw the token."""
        return self._columns["last_query_mass"][: self.n_tokens]

    @property
    def key_norm(self) -> FloatArray:
        """float32 [n]: Euclidean norm of the token's key; 0 where it was not measured."""
        return self._columns["key_norm"][: self.n_tokens]
