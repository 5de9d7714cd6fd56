// Every environment variable that the engine reads: read once, at init, into this struct.
//
// The table in knob_rows.hpp (name, type, default, unit, range, meaning, one row each) drives
// parsing, error texts and docs/reference/environment.md. No getenv anywhere else in the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/base/log.hpp"
#include "lightcc/base/status.hpp"

namespace lightcc {

struct Knobs {
  // Transport and topology.
  std::string iface;    ///< LIGHT_IFACE, HOROVOD_GLOO_IFACE: NIC names, local rank i uses the i-th.
  std::string host_id;  ///< LIGHT_HOST_ID: overrides what counts as one host.
  std::string topology_addr;           ///< LIGHT_TOPOLOGY_ADDR: the switches above this host.
  std::string slurm_topology_addr;     ///< SLURM_TOPOLOGY_ADDR: the same, and this host.
  std::string slurm_topology_pattern;  ///< SLURM_TOPOLOGY_ADDR_PATTERN: a word for each of them.
  std::string net = "tcp";             ///< LIGHT_NET: tcp, harp, or the path of a net plugin.
  std::int64_t tcp_rate = 0;  ///< LIGHT_TCP_RATE: test option, bytes per second sent; 0: unlimited.
  std::string gpu_operations = "auto";  ///< LIGHT_GPU_OPERATIONS, HOROVOD_GPU_OPERATIONS.
  std::string nccl_library;             ///< LIGHT_NCCL_LIBRARY: a file; empty: looked for.
  std::string nccl_host_id;             ///< NCCL_HOSTID: what NCCL takes for its host.
  std::string nccl_launch_order;        ///< NCCL_LAUNCH_ORDER_IMPLICIT: a number; 0: none.
  // Time limits, seconds.
  double peer_timeout_s = 30;  ///< LIGHT_PEER_TIMEOUT: silence of a rank with work outstanding.
  /// HOROVOD_START_TIMEOUT, HOROVOD_GLOO_TIMEOUT_SECONDS (the larger).
  double start_timeout_s = 30;
  /// Test option, of an operation of NCCL, which waits for other ranks' inputs; 0: none.
  double nccl_timeout_s = 600;
  bool stall_check = true;      ///< HOROVOD_STALL_CHECK_DISABLE (negated).
  double stall_warning_s = 60;  ///< HOROVOD_STALL_CHECK_TIME_SECONDS.
  double stall_shutdown_s = 0;  ///< HOROVOD_STALL_SHUTDOWN_TIME_SECONDS; 0: never.
  double slow_time_s = 10;      ///< LIGHT_SLOW_TIME: how long a rank must be slow; 0: never.
  // Fusion and lanes.
  std::string fusion_strategy;  ///< LIGHT_FUSION_STRATEGY; empty: as the caller says.
  std::string fusion_schedule;  ///< LIGHT_FUSION_SCHEDULE, of two of the strategies.
  std::int64_t fusion_threshold_bytes = std::int64_t{64} << 20;    ///< LIGHT_FUSION_THRESHOLD.
  std::int64_t horovod_threshold_bytes = std::int64_t{128} << 20;  ///< HOROVOD_FUSION_THRESHOLD.
  double horovod_cycle_ms = 1;                                     ///< HOROVOD_CYCLE_TIME.
  std::int64_t num_lanes = 1;                                      ///< LIGHT_NUM_STREAMS, 1..8.
  std::int64_t cache_capacity = 1024;  ///< HOROVOD_CACHE_CAPACITY: slots; 0: none.
  bool dynamic_process_sets = false;   ///< HOROVOD_DYNAMIC_PROCESS_SETS.
  // Two-level all-reduce.
  std::optional<bool> two_level;  ///< LIGHT_2D_ALLREDUCE; unset: where it saves network traffic.
  std::int64_t intra_size = 0;    ///< LIGHT_INTRA_SIZE: ranks of a block; 0: those of a host.
  std::int64_t two_level_max_bytes = std::int64_t{1} << 30;  ///< LIGHT_HIERARCHICAL_THRESHOLD.
  std::int64_t two_level_chunk_bytes = 0;  ///< For tests; 0: by the size of the bucket.
  // Compressed all-reduce.
  std::string quantize;    ///< LIGHT_QUANTIZE_ALLREDUCE: for what was named, unasked.
  bool topk = false;       ///< LIGHT_TOPK_ALLREDUCE: for what was named, unasked.
  bool topk_fp16 = false;  ///< LIGHT_TOPK_FP16.
  /// LIGHT_TOPK_OPTIMIZER: a frontend may choose for an optimizer. The engine does not ask.
  bool topk_by_optimizer = true;
  double topk_ratio = 0.01;                             ///< LIGHT_TOPK_RATIO.
  std::int64_t topk_min_bytes = std::int64_t{1} << 20;  ///< LIGHT_TOPK_THRESHOLD.
  // Memory of GPUs.
  /// Test option, the same on all ranks: of what goes by way of host memory. 0: none.
  std::int64_t staged_piece_bytes = std::int64_t{4} << 20;
  // Timeline: a file, DYNAMIC or nothing.
  std::string timeline;                ///< HOROVOD_TIMELINE: of rank 0.
  std::string timeline_of_all;         ///< LIGHT_TIMELINE: of all ranks; wins.
  bool timeline_marks_cycles = false;  ///< HOROVOD_TIMELINE_MARK_CYCLES.
  bool stat_server = true;             ///< LIGHT_STAT: answer lightcc-top.
  // Log.
  LogLevel log_level = LogLevel::kWarning;  ///< LIGHT_LOG_LEVEL, HOROVOD_LOG_LEVEL.
  bool log_hide_time = false;               ///< HOROVOD_LOG_HIDE_TIME.

  /// Variables that were set, by the first name of their row.
  std::vector<std::string> given;
  LIGHTCC_EXPORT bool is_given(const std::string& name) const;
};

/// How knobs reach the environment; tests hand in a map.
using GetEnv = std::function<std::optional<std::string>(const std::string& name)>;

/// Parses all knobs; an empty value counts as unset. kInvalidArgument names variable, value and
/// what is allowed.
LIGHTCC_EXPORT Result<Knobs> read_knobs(const GetEnv& get_env);
/// The process's environment.
LIGHTCC_EXPORT GetEnv process_environment();

/// "NAME=value" for each knob that must have the same value on all ranks.
std::vector<std::string> shared_knobs(const Knobs& knobs);

/// "NAME=value" for each knob that was given and is not at its default.
std::vector<std::string> settings_beside_defaults(const Knobs& knobs);

/// What to tell about variables among `names` that do nothing: each LIGHT_ name that lightcc does
/// not know, each HOROVOD_ name that looks like a misspelt one, and Horovod's that have no effect.
LIGHTCC_EXPORT std::vector<std::string> knob_warnings(const std::vector<std::string>& names);

/// One row of the table, as documentation shows it.
struct KnobRow {
  std::string name;
  std::string aliases;  ///< Comma-separated names that are honoured too.
  /// "bool", "integer, 1 to 16", "number, 0.1 to 86400", "one of ...", "string".
  std::string type;
  std::string default_value;
  std::string unit;
  std::string meaning;
  std::string used_by;  ///< "engine", "launcher", "package", "accepted" (checked, without effect).
};
LIGHTCC_EXPORT std::vector<KnobRow> knob_table();

}  // namespace lightcc
