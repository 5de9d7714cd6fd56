"""lightcc's engine, as the package uses it. Private: users call `lightcc`.

Written by hand; a test compares it with the extension (`mypy.stubtest`). Errors are those of
`lightcc.exceptions`; whatever can block releases the GIL.
"""

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Self

from lightcc._typing import Handle

def error_table() -> list[tuple[int, str, type[Exception]]]:
    """Returns (code, name, exception class) for every error code of the engine."""

def make_error(code: int, message: str, rank: int = -1) -> Exception:
    """Makes, without raising it, the exception of an engine error code."""

def grid_widths(members: int, num_bytes: int = 0) -> list[int]:
    """Returns the widths of the levels of an operation between hosts, from the lowest up.

    Empty for one member. Operations of up to 256 KiB have narrower levels than larger ones.
    """

class CudaArray:
    """A result in CUDA memory, for arrays that no framework of lightcc's made.

    `from_dlpack()` and `asarray()` of array libraries take it without a copy, and so does every
    operation. Its values are there: no stream has to wait for them.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Raises TypeError: only results are such."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """The name of the dtype, as numpy and torch call it."""

    @property
    def device(self) -> int:
        """The number of its GPU."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3; AttributeError for bfloat16, which it has no word for."""

    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: object = None,
        dl_device: object = None,
        copy: object = None,
    ) -> object:
        """Returns a capsule of its memory; BufferError for another device, or a copy."""

def poll(handle: int) -> bool:
    """Returns whether an operation is finished; ValueError for an unknown handle."""

def wait(handle: int, timeout_s: float | None = None) -> Any:
    """Waits for an operation and returns its result; None for an unknown handle.

    After `timeout_s`, looked at every 100 ms, it raises CollectiveTimeoutError. The operation goes
    on then, and can be waited for again.
    """

def add_done_callback(handle: int, callback: Callable[[int], object]) -> None:
    """Calls `callback(handle)` once, when the operation is done; at once if it is done already.

    It runs with the GIL, on a thread that only runs callbacks. `wait(handle)` returns the result or
    raises the error there without waiting. It may start operations, and wait for them; other
    callbacks run meanwhile, on other threads. `World.shutdown()` raises ValueError there. An
    exception that leaves it goes to `sys.unraisablehook`. Callbacks run before `World.shutdown()` returns; after the exit
    handlers of the interpreter, and in a child of fork(), none runs. ValueError for an unknown
    handle.
    """

def let_other_callbacks_run() -> None:
    """For a done callback that is about to wait otherwise than by `wait()`: others go on."""

def in_done_callback() -> bool:
    """Returns whether this thread runs a done callback, which may not shut down."""

def set_current(world: World | None) -> None:
    """Makes a world, or none, the one that operations inside graphs belong to.

    It stays that until another call: who destroys a world calls this before.
    """

def wait_on_host(enabled: bool) -> bool:
    """Chooses whether `wait()` returns after GPUs have finished.

    Returns:
        What was chosen before.
    """

def use_torch_exchange(enabled: bool) -> bool:
    """Chooses whether torch's DLPack exchange table is used; returns whether this torch has one.

    For tests: without it, tensors are read by their Python attributes, as those of an older torch.
    """

class CompressionSpec:
    """How an operation is compressed between hosts: top-k or quantised."""

    def __init__(
        self,
        ratio: float,
        fp16: bool = False,
        exact: bool = False,
        warmup_steps: int = 0,
        momentum: float = 0.0,
        two_bits: bool = False,
    ) -> None:
        """Takes the spec of top-k; ValueError where a number is out of its range."""

    @staticmethod
    def quantized(bits: int, segments: Sequence[tuple[int, int]] = ()) -> CompressionSpec:
        """Returns the spec of elements of 8 or 4 bits; ValueError for others.

        `segments` are for an allgather or a reducescatter: elements and bits (8, 4, or 0: as they
        are) of each stretch of what one rank gives, or gets. Blocks begin anew with each.
        """

    @property
    def bits(self) -> int:
        """Bits of a quantised element; 0 if elements are not quantised."""

    @property
    def ratio(self) -> float: ...
    @property
    def fp16(self) -> bool: ...
    @property
    def two_bits(self) -> bool:
        """Whether values travel as signs and means of two classes."""

    @property
    def exact(self) -> bool: ...
    @property
    def warmup_steps(self) -> int: ...
    @property
    def momentum(self) -> float: ...

class World:
    """One membership of ranks. Submitting methods return a handle and never block.

    `name=None` numbers the operation; `process_set` is an id, None for a set that is not registered
    (ValueError); `grouped` takes a sequence of tensors as one all-or-nothing group. Operations
    without a name are numbered for each `sequence`, a text: ranks must agree on their order within
    one. `outputs` are tensors like `tensors`, contiguous, of the results' number of elements and
    of the input's dtype; they receive the results and are what `wait()` returns.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        rendezvous: str = "",
        key_prefix: str = "",
        secret: str = "",
        process_sets: Sequence[Sequence[int]] = [],
        dynamic_process_sets: bool = False,
        group_timeout_s: float | None = None,
    ) -> None:
        """Joins all ranks into one world, reading the knobs from the environment.

        Blocks: for `group_timeout_s`, or for HOROVOD_START_TIMEOUT.
        """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    @property
    def homogeneous(self) -> bool: ...
    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host, ascending; hosts in the order of their lowest ranks."""

    @property
    def dynamic_process_sets(self) -> bool: ...
    @property
    def answers_questions(self) -> bool:
        """Whether lightcc-top may ask this rank for its counters (LIGHT_STAT)."""

    @property
    def failed(self) -> bool:
        """Whether the world ended with an error; a rank that left is none. Also after shutdown."""

    def allreduce(
        self,
        tensors: object,
        grouped: bool,
        in_place: bool,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: int | None,
        waits: bool = False,
        compression: CompressionSpec | None = None,
        sequence: str = "",
    ) -> Handle[Any]:
        """Starts an allreduce.

        `compression` asks for compression, which needs a name; without it LIGHT_TOPK_ALLREDUCE decides, for
        what has a name.
        """

    def repeat_allreduce(
        self,
        tensor: object,
        in_place: bool,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: int | None,
        /,
    ) -> Any:
        """Does an allreduce that was done before, and returns the result; None: there was none such.

        It is one that `allreduce()` was told waits, under the same name, of a tensor of the same
        kind, and with the same arguments.
        """

    def allreduce_each(
        self,
        tensors: Sequence[Any],
        names: Sequence[str],
        op: int,
        prescale: float,
        postscale: float,
        process_set: int | None,
        together: bool = False,
        fusion_rule: int = 0,
        fusion_limit: int = 0,
        compression: CompressionSpec | None = None,
    ) -> Handle[list[Any]]:
        """Starts an in-place allreduce of each tensor, under its own name, with one handle.

        With `together` they are one all-or-nothing group. Otherwise, what other ranks put into one
        call need not be the same. Nothing is started where one of them cannot be. The handle is
        done when all are, with the first error if there was one.

        `fusion_rule` and `fusion_limit` (bytes) are those of `lightcc.fusion.Rule`; all ranks must
        agree on them. `compression` as in `allreduce()`.
        """

    def allgather(
        self,
        tensors: object,
        grouped: bool,
        name: str | None,
        process_set: int | None,
        waits: bool = False,
        outputs: object = None,
        sequence: str = "",
        compression: CompressionSpec | None = None,
    ) -> Handle[Any]: ...
    def reducescatter(
        self,
        tensors: object,
        grouped: bool,
        name: str | None,
        op: int,
        prescale: float,
        postscale: float,
        process_set: int | None,
        waits: bool = False,
        outputs: object = None,
        sequence: str = "",
        compression: CompressionSpec | None = None,
    ) -> Handle[Any]: ...
    def broadcast(
        self,
        tensor: object,
        in_place: bool,
        root_rank: int,
        name: str | None,
        process_set: int | None,
        waits: bool = False,
        sequence: str = "",
    ) -> Handle[Any]: ...
    def alltoall(
        self,
        tensor: object,
        splits: object,
        name: str | None,
        process_set: int | None,
        waits: bool = False,
        output: object = None,
        sequence: str = "",
    ) -> Handle[Any]: ...
    def send(
        self,
        tensor: object,
        destination: int,
        name: str | None,
        process_set: int | None,
        waits: bool = False,
        sequence: str = "",
    ) -> Handle[Any]: ...
    def recv(
        self,
        tensor: object,
        source: int,
        name: str | None,
        process_set: int | None,
        waits: bool = False,
        sequence: str = "",
    ) -> Handle[Any]: ...
    def recv_any(
        self, tensor: object, process_set: int | None, sequence: str = ""
    ) -> Handle[tuple[Any, int]]: ...
    def barrier(self, process_set: int | None) -> Handle[Any]: ...
    def join(self) -> Handle[Any]: ...
    def add_process_set(self, ranks: Sequence[int]) -> Handle[Any]: ...
    def remove_process_set(self, process_set: int) -> Handle[Any]: ...
    def process_sets(self) -> dict[int, list[int]]:
        """Returns the members, as world ranks, of all registered sets by id."""

    def fusion_knobs(self) -> dict[str, Any]:
        """Returns `strategy` and `schedule` (empty: not set), and `threshold_bytes`.

        `threshold_is_given` says whether a variable sets the threshold; otherwise it is the default.
        """

    def compression_knobs(self) -> dict[str, Any]:
        """Returns what variables ask for.

        `quantize` is empty, int8 or int4. `topk`, `topk_ratio`, `topk_fp16` and
        `topk_by_optimizer` are of LIGHT_TOPK_ALLREDUCE.
        """

    def stats(self) -> dict[str, Any]:
        """Returns the numbers of `stat_table()` since the world was made, and lists."""

    def start_timeline(self, path: str, mark_cycles: bool) -> None:
        """Records a timeline into a file; ValueError where that is not allowed or possible."""

    def stop_timeline(self) -> None:
        """Completes the timeline's file, if there is one."""

    def compression_position(self, process_set: int) -> tuple[int, int, int, int] | None:
        """Returns (blocks, block, members, member) of this rank in the grid of compression.

        None where the set is not compressed, because its ranks share a host.
        """

    def compresses(self, process_set: int, num_bytes: int) -> bool:
        """Returns whether a floating-point tensor is compressed when that is asked for."""

    def save_compression(self) -> dict[tuple[int, str], bytes]:
        """Returns the residuals of this rank, by process set and operation.

        ValueError while a compressed tensor is in flight.
        """

    def check_compression(self, process_set: int, name: str, state: bytes) -> tuple[str, int, int]:
        """Returns dtype, elements and steps of a state; ValueError as `load_compression()`."""

    def load_compression(self, process_set: int, name: str, state: bytes) -> None:
        """Takes in what `save_compression()` returned; ValueError where it is damaged."""

    def scale_compression(self, factor: float, process_set: int, names: Sequence[str]) -> None:
        """Multiplies the residuals of the operations `names`."""

    def finish(self) -> None:
        """Waits until GPUs have finished all that is done so far; raises the world's error."""

    def fail(self, reason: str) -> None:
        """Ends the world on all ranks with a PeerFailedError that names this rank. Blocks."""

    def shutdown(self) -> None:
        """Leaves the world; its pending operations are lost. Idempotent. Blocks."""

def regroup_compression(
    like: bytes, states: Sequence[bytes], blocks: int, block: int, members: int, member: int
) -> bytes:
    """Adds up what ranks of any grid saved of one tensor, for a rank of another grid.

    `like` is what any of them saved; where there are no `states`, residuals are zero. ValueError
    where they are not of one tensor, step and grid.
    """

class StoreServer:
    """Serves the store through which the ranks of one job find each other, until stopped.

    The server has a thread of its own, and answers only clients that prove the secret.
    """

    def __init__(self, bind_address: str, secret: str) -> None:
        """Listens on "host:port"; port 0 chooses one. ValueError or EngineError where that fails."""

    @property
    def address(self) -> str:
        """The address, with the real port."""

    def stop(self) -> None:
        """Closes every connection and the port. Idempotent."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...

class StoreClient:
    """A client of a job's store. Calls of several threads do not wait for one another.

    Keys have at most 256 bytes. A call that the store does not answer within `timeout_s` raises
    CollectiveTimeoutError; one that `close()` ends raises ShutDownError.
    """

    def __init__(self, address: str, secret: str) -> None:
        """Takes the store's "host:port"; the connection is made by the first call."""

    def set(self, key: str, value: bytes, timeout_s: float) -> None:
        """Sets `key`; ValueError for more than 16 MiB, EngineError where the store is full."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits until `key` exists and returns its value."""

    def compare_and_set(
        self, key: str, expected: bytes | None, desired: bytes, timeout_s: float
    ) -> bytes | None:
        """Sets `key` if it has the value `expected`, `None` being no value at all.

        Returns the value that it has then. ValueError for values of more than 64 KiB.
        """

    def watch(
        self, prefix: str, known_state: int, timeout_s: float
    ) -> tuple[int, dict[str, bytes]] | None:
        """Waits until keys below `prefix` are set or removed.

        Args:
            prefix: How the keys begin.
            known_state: What the last call returned; 0 to see at once what there is.
            timeout_s: After which it returns `None`.

        Returns:
            The state to wait for a change of, and all keys with their values: 1 MiB at most, or
            ValueError.
        """

    def remove_prefix(self, prefix: str, timeout_s: float) -> None:
        """Removes every key that starts with `prefix`."""

    def fail(self, prefix: str, reason: str, timeout_s: float) -> None:
        """Makes `World` raise PeerFailedError with `reason` where it joins below `prefix`."""

    def close(self) -> None:
        """Ends all calls, now and later. Never blocks."""

def knob_table() -> list[dict[str, str]]:
    """Returns every environment variable that lightcc reads.

    Keys: name, aliases, type, default_value, unit, meaning, used_by.
    """

def stat_table() -> list[dict[str, str]]:
    """Returns every number of `World.stats()`; keys: name, kind, unit, meaning."""

def knob_warnings(names: Sequence[str]) -> list[str]:
    """Returns what to tell about variables in `names` that are misspelt or have no effect."""

def check_knobs() -> None:
    """Raises ValueError when a variable of the environment has a value that is not allowed."""

def simd_level() -> str:
    """Returns the best SIMD level of this machine: plain, avx2 or avx512."""

def find_gpus() -> dict[str, Any]:
    """Returns the GPUs that the CUDA driver has, and the CUDA version of that.

    Keys: driver_version (12080 is CUDA 12.8) and gpus, a list of dicts by number. Each has name,
    capability (major and minor), bytes of memory, pci_bus_id, uuid ("" from drivers older than
    CUDA 11.4), is_slice (a part of a GPU, by MIG), peers (numbers of GPUs whose memory it can use),
    is_precompiled (the library has machine code for it), and objection: why lightcc's kernels do
    not run there, or "". No memory of a GPU is taken.
    NotImplementedError: there is no GPU, and the message says why.
    """

def find_nccl(file: str) -> int:
    """Returns the version of the NCCL that is found: 22005 is 2.20.5.

    That is what the process has loaded; else `file`, or, where that is empty, what the loader finds.
    It stays loaded. NotImplementedError: there is none that can be used, and the message says why.
    """

def try_gpu(index: int) -> None:
    """Loads all kernels on a GPU and runs one of them, to see that it works.

    That takes some hundred MiB of the GPU's memory for a moment. NotImplementedError: the kernels
    cannot run there. RuntimeError: a call of the driver failed, or the result was wrong.
    """
