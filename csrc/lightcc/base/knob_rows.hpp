// The table of environment variables: one row each. Private to knobs.cpp and knob_warnings.cpp.
//
// Everything that is said or done about a variable comes from its row, so a variable is added in
// one place. The default of an engine knob is the member's initialiser in Knobs, never repeated
// here.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "lightcc/base/knobs.hpp"

namespace lightcc::detail {

enum class Type : std::uint8_t {
  kBool,
  kInteger,
  kBytes,
  kSeconds,
  kNumber,
  kString,
  kWord,
  kWordOrPath,  ///< One of the words, or a text with a slash.
  kLevel
};

/// Where an engine knob goes; nothing for a variable that is only checked.
using Target = std::variant<std::monostate,
                            bool Knobs::*,
                            std::optional<bool> Knobs::*,
                            std::int64_t Knobs::*,
                            double Knobs::*,
                            std::string Knobs::*,
                            LogLevel Knobs::*>;

/// Whose value counts when several names of a row are set.
enum class Among : std::uint8_t { kFirst, kLargest };

struct Row {
  std::array<std::string_view, 2> names;  ///< In order of precedence; the second may be empty.
  Type type = Type::kString;
  Target target{};
  bool negated = false;       ///< The variable says the opposite of the member.
  std::string_view preset{};  ///< Default as documented, where there is no target.
  double minimum = 0;         ///< Smallest value of a number. Integers stay below 2^53.
  double maximum = 0;
  std::string_view words{};  ///< Allowed by Type::kWord and kWordOrPath, separated by ", ".
  std::string_view unit{};   ///< Where the type does not say it.
  std::string_view used_by = "engine";
  bool shared = false;  ///< An engine knob that must have the same value on all ranks.
  Among among = Among::kFirst;
  std::string_view meaning{};
};

/// `text` for a message: printable, and not longer than a line.
std::string quoted(std::string_view text);

inline constexpr double kKibi = 1024.0;
inline constexpr double kMebi = kKibi * 1024.0;
inline constexpr double kGibi = kMebi * 1024.0;
inline constexpr double kDay = 86400;
inline constexpr double kMaxRanks = 1048576;
inline constexpr std::string_view kLevels = "trace, debug, info, warning, error, fatal";

inline constexpr auto kRows = std::to_array<Row>({
    // Transport and topology.
    {.names = {"LIGHT_IFACE", "HOROVOD_GLOO_IFACE"},
     .target = &Knobs::iface,
     .meaning = "Network interfaces, comma-separated; local rank i uses the i-th (modulo their "
                "number). Empty: the interface of the route to the rendezvous."},
    {.names = {"LIGHT_HOST_ID"},
     .target = &Knobs::host_id,
     .meaning = "Ranks with different values never share memory, as if on different hosts. "
                "Empty: ranks that can share memory do."},
    {.names = {"LIGHT_TOPOLOGY_ADDR"},
     .target = &Knobs::topology_addr,
     .meaning = "The switches above this host from the outermost in, with dots between them, such "
                "as zone-a.rack7: for all hosts, or for none. Levels of collectives between hosts "
                "follow them. Empty: what Slurm tells, if it tells all ranks."},
    {.names = {"SLURM_TOPOLOGY_ADDR"},
     .target = &Knobs::slurm_topology_addr,
     .meaning = "Slurm's own: the switches above this host, and the host. They count where "
                "LIGHT_TOPOLOGY_ADDR is not set."},
    {.names = {"SLURM_TOPOLOGY_ADDR_PATTERN"},
     .target = &Knobs::slurm_topology_pattern,
     .meaning = "Slurm's own: what each part of SLURM_TOPOLOGY_ADDR is, such as "
                "switch.switch.node. The last one is the host."},
    {.names = {"LIGHT_NET"},
     .type = Type::kWordOrPath,
     .target = &Knobs::net,
     .words = "tcp, harp",
     .shared = true,
     .meaning =
         "What carries data between hosts: TCP; HARP, which comes with lightcc; or any other "
         "NCCL net plugin for host memory (versions 5 to 12), by the path of its library."},
    {.names = {"LIGHT_TCP_RATE"},
     .type = Type::kBytes,
     .target = &Knobs::tcp_rate,
     .maximum = kGibi * 1024,
     .unit = "bytes per second",
     .meaning = "For tests: the rate at which this rank may send over TCP. 0: no limit."},
    {.names = {"LIGHT_GPU_OPERATIONS", "HOROVOD_GPU_OPERATIONS"},
     .type = Type::kWord,
     .target = &Knobs::gpu_operations,
     .words = "auto, nccl, host, mpi",
     .shared = true,
     .meaning =
         "What carries tensors of GPUs. auto, nccl: NCCL if each rank has it and a GPU of its own, "
         "otherwise lightcc through host memory. host, mpi: lightcc. With auto, NCCL is not opened "
         "where no rank sees a GPU."},
    {.names = {"LIGHT_NCCL_LIBRARY"},
     .target = &Knobs::nccl_library,
     .meaning = "File of NCCL's library. Empty: that of the nvidia-nccl wheel on Python's path, or "
                "what the loader finds. What the process has loaded already goes before all."},
    {.names = {"NCCL_HOSTID"},
     .target = &Knobs::nccl_host_id,
     .meaning = "NCCL's own: what it takes for its host. Ranks where it differs may share a GPU, "
                "which they use by NCCL's network then."},
    {.names = {"NCCL_LAUNCH_ORDER_IMPLICIT"},
     .target = &Knobs::nccl_launch_order,
     .meaning = "NCCL's own, from 2.26 on: 1 has it begin operations of several communicators in "
                "the order of calls. Lanes and process sets of lightcc have streams of their own "
                "then; else NCCL's operations run one after another."},
    // Time limits.
    {.names = {"LIGHT_PEER_TIMEOUT"},
     .type = Type::kSeconds,
     .target = &Knobs::peer_timeout_s,
     .minimum = 0.1,
     .maximum = kDay,
     .meaning = "How long a rank may stay silent with an operation outstanding before the world "
                "fails with a timeout that names it."},
    {.names = {"HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS"},
     .type = Type::kSeconds,
     .target = &Knobs::start_timeout_s,
     .minimum = 0.1,
     .maximum = kDay,
     .among = Among::kLargest,
     .meaning = "How long init() waits for all ranks. When both names are set, the larger value "
                "counts."},
    {.names = {"HOROVOD_STALL_CHECK_DISABLE"},
     .type = Type::kBool,
     .target = &Knobs::stall_check,
     .negated = true,
     .meaning = "Switches the stall check off: neither its warning nor its shutdown happens."},
    {.names = {"HOROVOD_STALL_CHECK_TIME_SECONDS"},
     .type = Type::kSeconds,
     .target = &Knobs::stall_warning_s,
     .minimum = 0.1,
     .maximum = kDay * 365,
     .meaning = "Age at which an operation that some ranks have not submitted is warned about."},
    {.names = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"},
     .type = Type::kSeconds,
     .target = &Knobs::stall_shutdown_s,
     .maximum = kDay * 365,
     .meaning = "Age at which such an operation ends the world with an error; 0: never."},
    {.names = {"LIGHT_SLOW_TIME"},
     .type = Type::kSeconds,
     .target = &Knobs::slow_time_s,
     .maximum = kDay,
     .meaning =
         "How long a rank must take twice as long for a step as the median rank before it is "
         "said to be slow; 15 steps at least. 0: no rank is ever slow."},
    // Fusion and lanes.
    {.names = {"LIGHT_FUSION_STRATEGY"},
     .type = Type::kWord,
     .target = &Knobs::fusion_strategy,
     .words = "none, auto_fusion, piecewise_fusion, scopewise_fusion, horovod",
     .shared = true,
     .meaning = "How gradients are grouped into buckets; counts before DistributedOptimizer's "
                "fusion_type. Unset: that argument, else auto_fusion. All-reduces outside of "
                "optimizers follow none, horovod, or else auto_fusion."},
    {.names = {"LIGHT_FUSION_SCHEDULE"},
     .target = &Knobs::fusion_schedule,
     .shared = true,
     .meaning = "For piecewise_fusion: the positions where its buckets begin, as in 2;6. For "
                "scopewise_fusion: prefixes of names, as in encoder;decoder. Counts before "
                "DistributedOptimizer's piecewise_fusion_schedule and scopewise_fusion_schedule."},
    {.names = {"LIGHT_FUSION_THRESHOLD"},
     .type = Type::kBytes,
     .target = &Knobs::fusion_threshold_bytes,
     .maximum = kGibi * 1024,
     .meaning = "Size at which auto_fusion closes a bucket. Counts before DistributedOptimizer's "
                "auto_fusion_threshold."},
    {.names = {"HOROVOD_FUSION_THRESHOLD"},
     .type = Type::kBytes,
     .target = &Knobs::horovod_threshold_bytes,
     .maximum = kGibi * 1024,
     .meaning = "Size at which the strategy horovod closes a bucket; 0: it fuses nothing. Other "
                "strategies do not look at it."},
    {.names = {"HOROVOD_CYCLE_TIME"},
     .type = Type::kNumber,
     .target = &Knobs::horovod_cycle_ms,
     .maximum = 1e6,
     .unit = "ms",
     .meaning = "The strategy horovod looks for buckets once in that time; 0: at once. Other "
                "strategies have no cycle."},
    {.names = {"LIGHT_NUM_STREAMS"},
     .type = Type::kInteger,
     .target = &Knobs::num_lanes,
     .minimum = 1,
     .maximum = 8,
     .shared = true,
     .meaning = "Lanes: buckets of a process set that can be in progress beside one another."},
    {.names = {"HOROVOD_CACHE_CAPACITY"},
     .type = Type::kInteger,
     .target = &Knobs::cache_capacity,
     .maximum = 1048576,
     .meaning = "Tensors whose description is remembered as a slot number; 0: none."},
    {.names = {"HOROVOD_DYNAMIC_PROCESS_SETS"},
     .type = Type::kBool,
     .target = &Knobs::dynamic_process_sets,
     .meaning = "Allows process sets to be added and removed after init()."},
    // Two-level operations.
    {.names = {"LIGHT_2D_ALLREDUCE"},
     .type = Type::kBool,
     .target = &Knobs::two_level,
     .shared = true,
     .meaning =
         "Two-level allreduce, reducescatter, allgather and broadcast: within blocks of "
         "ranks that share memory, and between blocks, overlapped. Unset: where blocks of "
         "several ranks lie on several hosts; 0: never; 1: also between blocks of one host "
         "(LIGHT_INTRA_SIZE) and for all-reduces by NCCL, and a warning where it cannot be."},
    {.names = {"LIGHT_INTRA_SIZE"},
     .type = Type::kInteger,
     .target = &Knobs::intra_size,
     .maximum = kMaxRanks,
     .shared = true,
     .meaning = "Ranks of a block of two-level operations; must divide the ranks of every host, "
                "else all operations run flat. 0: the ranks of a host, if all hosts have equally "
                "many."},
    {.names = {"LIGHT_HIERARCHICAL_THRESHOLD"},
     .type = Type::kBytes,
     .target = &Knobs::two_level_max_bytes,
     .maximum = kGibi * 1024,
     .shared = true,
     .meaning = "Maximum size of an operation that runs on two levels, all ranks together."},
    // Compressed all-reduce.
    {.names = {"LIGHT_QUANTIZE_ALLREDUCE"},
     .type = Type::kWord,
     .target = &Knobs::quantize,
     .words = "int8, int4",
     .shared = true,
     .meaning =
         "Sums and averages of floating-point tensors that have a name travel in 8 or 4 bits "
         "an element between hosts, also where nobody asks for it in the program. Counts "
         "before LIGHT_TOPK_ALLREDUCE."},
    {.names = {"LIGHT_TOPK_ALLREDUCE"},
     .type = Type::kBool,
     .target = &Knobs::topk,
     .shared = true,
     .meaning = "Sums and averages of floating-point tensors that have a name (gradients have) are "
                "top-k compressed between hosts, also where nobody asks for it in the program. "
                "DistributedOptimizer of torch and Keras compresses as suits its optimizer, and "
                "its log says how."},
    {.names = {"LIGHT_TOPK_OPTIMIZER"},
     .type = Type::kBool,
     .target = &Knobs::topk_by_optimizer,
     .shared = true,
     .meaning = "Whether LIGHT_TOPK_ALLREDUCE lets DistributedOptimizer compress as suits its "
                "optimizer; 0: top-k of gradients, whatever the optimizer."},
    {.names = {"LIGHT_TOPK_RATIO"},
     .type = Type::kNumber,
     .target = &Knobs::topk_ratio,
     .minimum = 0.000001,
     .maximum = 1,
     .shared = true,
     .meaning = "Share of the elements that LIGHT_TOPK_ALLREDUCE sends."},
    {.names = {"LIGHT_TOPK_THRESHOLD"},
     .type = Type::kBytes,
     .target = &Knobs::topk_min_bytes,
     .maximum = kGibi * 1024,
     .shared = true,
     .meaning = "Smallest tensor whose all-reduce is compressed, whoever asks for it."},
    {.names = {"LIGHT_TOPK_FP16"},
     .type = Type::kBool,
     .target = &Knobs::topk_fp16,
     .shared = true,
     .meaning = "LIGHT_TOPK_ALLREDUCE sends values as float16; what the rounding leaves is sent "
                "later."},
    // Shared memory and kernels.
    // Timeline.
    {.names = {"HOROVOD_TIMELINE"},
     .target = &Knobs::timeline,
     .meaning = "File into which rank 0 records a timeline from init() on; DYNAMIC: "
                "hvd.start_timeline() names it."},
    {.names = {"LIGHT_TIMELINE"},
     .target = &Knobs::timeline_of_all,
     .meaning = "The same, for all ranks: rank 1 writes trace.rank1.json beside trace.json. Goes "
                "before HOROVOD_TIMELINE."},
    {.names = {"HOROVOD_TIMELINE_MARK_CYCLES"},
     .type = Type::kBool,
     .target = &Knobs::timeline_marks_cycles,
     .meaning = "Marks in the timeline when rank 0 announces what all ranks asked for."},
    {.names = {"LIGHT_STAT"},
     .type = Type::kBool,
     .target = &Knobs::stat_server,
     .used_by = "package",
     .meaning =
         "Lets lightcc-top and its exporter ask this rank for its counters, through a socket "
         "that only the same user and root can use."},
    // Log.
    {.names = {"LIGHT_LOG_LEVEL", "HOROVOD_LOG_LEVEL"},
     .type = Type::kLevel,
     .target = &Knobs::log_level,
     .words = kLevels,
     .meaning = "The least serious lines that are written to standard error."},
    {.names = {"HOROVOD_LOG_HIDE_TIME"},
     .type = Type::kBool,
     .target = &Knobs::log_hide_time,
     .meaning = "Leaves the time out of log lines."},
    // Set by lightccrun for the ranks that it starts.
    {.names = {"LIGHT_RANK", "HOROVOD_RANK"},
     .type = Type::kInteger,
     .preset = "0",
     .maximum = kMaxRanks - 1,
     .used_by = "launcher",
     .meaning = "This process's rank."},
    {.names = {"LIGHT_SIZE", "HOROVOD_SIZE"},
     .type = Type::kInteger,
     .preset = "1",
     .minimum = 1,
     .maximum = kMaxRanks,
     .used_by = "launcher",
     .meaning = "Number of ranks."},
    {.names = {"LIGHT_LOCAL_RANK"},
     .type = Type::kInteger,
     .preset = "0",
     .maximum = kMaxRanks - 1,
     .used_by = "launcher",
     .meaning = "This rank's number on its host."},
    {.names = {"LIGHT_LOCAL_SIZE"},
     .type = Type::kInteger,
     .preset = "1",
     .minimum = 1,
     .maximum = kMaxRanks,
     .used_by = "launcher",
     .meaning = "Number of ranks on this host."},
    {.names = {"LIGHT_CROSS_RANK"},
     .type = Type::kInteger,
     .preset = "0",
     .maximum = kMaxRanks - 1,
     .used_by = "launcher",
     .meaning = "This host's number among the hosts that have this local rank."},
    {.names = {"LIGHT_CROSS_SIZE"},
     .type = Type::kInteger,
     .preset = "1",
     .minimum = 1,
     .maximum = kMaxRanks,
     .used_by = "launcher",
     .meaning = "Number of hosts that have this local rank."},
    {.names = {"LIGHT_RENDEZVOUS"},
     .used_by = "launcher",
     .meaning = "host:port of the store through which the ranks find each other."},
    {.names = {"LIGHT_SECRET"},
     .used_by = "launcher",
     .meaning = "The job's secret, which every connection proves."},
    {.names = {"LIGHT_SECRET_FILE"},
     .used_by = "launcher",
     .meaning = "A file that holds the secret, instead of LIGHT_SECRET."},
    {.names = {"LIGHT_HOSTNAME"},
     .used_by = "launcher",
     .meaning = "Name of this host as the launcher knows it, for messages."},
    {.names = {"LIGHT_WORKER"},
     .used_by = "launcher",
     .meaning = "Number of this process in an elastic job, which no other ever has."},
    {.names = {"LIGHT_COMMIT_FDS"},
     .used_by = "launcher",
     .meaning = "Descriptors of the memory where an elastic job's commits outlive its ranks."},
    // Accepted, so that existing launch lines work; without effect.
    {.names = {"HOROVOD_MPI_THREADS_DISABLE"},
     .type = Type::kBool,
     .used_by = "accepted",
     .meaning = "How Horovod starts MPI. Under mpirun, MPI_THREAD_FUNNELED is asked for."},
    {.names = {"HOROVOD_AUTOTUNE"},
     .used_by = "accepted",
     .meaning = "Nothing is searched at run time."},
    {.names = {"HOROVOD_AUTOTUNE_LOG"},
     .used_by = "accepted",
     .meaning = "Nothing is searched at run time."},
    {.names = {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES"},
     .used_by = "accepted",
     .meaning = "Nothing is searched at run time."},
    {.names = {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"},
     .used_by = "accepted",
     .meaning = "Nothing is searched at run time."},
    {.names = {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"},
     .used_by = "accepted",
     .meaning = "Nothing is searched at run time."},
    {.names = {"HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"},
     .used_by = "accepted",
     .meaning = "Nothing is searched at run time."},
    {.names = {"HOROVOD_HIERARCHICAL_ALLREDUCE"},
     .type = Type::kBool,
     .used_by = "accepted",
     .meaning = "The engine chooses the algorithm by topology; LIGHT_2D_ALLREDUCE overrides it."},
    {.names = {"HOROVOD_HIERARCHICAL_ALLGATHER"},
     .type = Type::kBool,
     .used_by = "accepted",
     .meaning = "The engine chooses the algorithm by topology; LIGHT_2D_ALLREDUCE overrides it."},
    {.names = {"HOROVOD_TORUS_ALLREDUCE"},
     .type = Type::kBool,
     .used_by = "accepted",
     .meaning = "The engine chooses the algorithm by topology; LIGHT_2D_ALLREDUCE overrides it."},
    {.names = {"HOROVOD_ENABLE_ASYNC_COMPLETION"},
     .used_by = "accepted",
     .meaning = "synchronize() of what NCCL carries, of torch or CuPy, always has the current "
                "stream wait for the result."},
    {.names = {"HOROVOD_NUM_NCCL_STREAMS"},
     .used_by = "accepted",
     .meaning = "LIGHT_NUM_STREAMS is the number of lanes, and NCCL has a communicator for each."},
    {.names = {"HOROVOD_THREAD_AFFINITY"},
     .used_by = "accepted",
     .meaning = "Bind the ranks with taskset or numactl in the command."},
    {.names = {"HOROVOD_BATCH_D2D_MEMCOPIES"},
     .used_by = "accepted",
     .meaning = "Nothing is copied into a fusion buffer."},
    {.names = {"HOROVOD_DISABLE_GROUP_FUSION"},
     .type = Type::kBool,
     .used_by = "accepted",
     .meaning =
         "A group may share its bucket with other tensors; its results do not depend on it."},
    {.names = {"HOROVOD_ENABLE_XLA_OPS"},
     .used_by = "accepted",
     .meaning = "XLA does not compile lightcc's operations."},
    {.names = {"HOROVOD_ADASUM_MPI_CHUNK_SIZE"},
     .used_by = "accepted",
     .meaning = "lightcc's Adasum does not use MPI."},
    {.names = {"HOROVOD_CCL_CACHE"},
     .used_by = "accepted",
     .meaning = "lightcc does not use oneCCL."},
    {.names = {"HOROVOD_DISABLE_NVTX_RANGES"},
     .used_by = "accepted",
     .meaning = "lightcc has no NVTX ranges; torch.profiler shows its collectives."},
});

}  // namespace lightcc::detail
