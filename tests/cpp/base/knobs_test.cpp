#include "lightcc/base/knobs.hpp"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lightcc::knobs_test {
namespace {

using Environment = std::map<std::string, std::string>;

GetEnv from(Environment environment) {
  return [environment =
              std::move(environment)](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
}

Knobs good(Environment environment) {
  const auto knobs = read_knobs(from(std::move(environment)));
  EXPECT_TRUE(knobs.ok()) << knobs.status().message();
  return knobs.ok() ? knobs.value() : Knobs{};
}

std::string error_of(const std::string& name, const std::string& value) {
  const auto knobs = read_knobs(from({{name, value}}));
  EXPECT_FALSE(knobs.ok()) << name << "=" << value;
  EXPECT_EQ(knobs.status().code(), ErrorCode::kInvalidArgument);
  return knobs.status().message();
}

TEST(Knobs, an_empty_environment_gives_the_defaults) {
  const Knobs knobs = good({});
  const Knobs defaults;
  EXPECT_EQ(knobs.net, defaults.net);
  EXPECT_EQ(knobs.peer_timeout_s, defaults.peer_timeout_s);
  EXPECT_EQ(knobs.fusion_threshold_bytes, std::int64_t{64} << 20);
  EXPECT_EQ(knobs.stall_check, true);
  EXPECT_EQ(knobs.log_level, LogLevel::kWarning);
}

TEST(Knobs, every_engine_knob_arrives_in_its_member) {
  const Knobs knobs = good({{"LIGHT_IFACE", "eth0,eth1"},
                            {"LIGHT_HOST_ID", "a"},
                            {"LIGHT_TOPOLOGY_ADDR", "zone.rack"},
                            {"SLURM_TOPOLOGY_ADDR", "s0.n1"},
                            {"SLURM_TOPOLOGY_ADDR_PATTERN", "switch.node"},
                            {"LIGHT_NET", "tcp"},
                            {"LIGHT_TCP_RATE", "5K"},
                            {"LIGHT_PEER_TIMEOUT", "4.5"},
                            {"HOROVOD_START_TIMEOUT", "12"},
                            {"HOROVOD_STALL_CHECK_DISABLE", "1"},
                            {"HOROVOD_STALL_CHECK_TIME_SECONDS", "7"},
                            {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "8"},
                            {"LIGHT_FUSION_STRATEGY", "none"},
                            {"LIGHT_FUSION_SCHEDULE", "2;6"},
                            {"LIGHT_FUSION_THRESHOLD", "1M"},
                            {"HOROVOD_FUSION_THRESHOLD", "2M"},
                            {"HOROVOD_CYCLE_TIME", "3.5"},
                            {"LIGHT_NUM_STREAMS", "2"},
                            {"HOROVOD_CACHE_CAPACITY", "9"},
                            {"HOROVOD_DYNAMIC_PROCESS_SETS", "1"},
                            {"LIGHT_2D_ALLREDUCE", "off"},
                            {"LIGHT_INTRA_SIZE", "4"},
                            {"LIGHT_HIERARCHICAL_THRESHOLD", "2G"},
                            {"LIGHT_LOG_LEVEL", "debug"},
                            {"HOROVOD_LOG_HIDE_TIME", "1"}});
  EXPECT_EQ(knobs.iface, "eth0,eth1");
  EXPECT_EQ(knobs.host_id, "a");
  EXPECT_EQ(knobs.topology_addr, "zone.rack");
  EXPECT_EQ(knobs.slurm_topology_addr, "s0.n1");
  EXPECT_EQ(knobs.slurm_topology_pattern, "switch.node");
  EXPECT_EQ(knobs.net, "tcp");
  EXPECT_EQ(knobs.tcp_rate, 5 * 1024);
  EXPECT_EQ(knobs.peer_timeout_s, 4.5);
  EXPECT_EQ(knobs.start_timeout_s, 12);
  EXPECT_FALSE(knobs.stall_check);
  EXPECT_EQ(knobs.stall_warning_s, 7);
  EXPECT_EQ(knobs.stall_shutdown_s, 8);
  EXPECT_EQ(knobs.fusion_strategy, "none");
  EXPECT_EQ(knobs.fusion_schedule, "2;6");
  EXPECT_EQ(knobs.fusion_threshold_bytes, 1 << 20);
  EXPECT_EQ(knobs.horovod_threshold_bytes, 2 << 20);
  EXPECT_EQ(knobs.horovod_cycle_ms, 3.5);
  EXPECT_TRUE(knobs.is_given("LIGHT_FUSION_SCHEDULE"));
  EXPECT_FALSE(knobs.is_given("LIGHT_2D"));
  EXPECT_EQ(knobs.num_lanes, 2);
  EXPECT_EQ(knobs.cache_capacity, 9);
  EXPECT_TRUE(knobs.dynamic_process_sets);
  EXPECT_EQ(knobs.two_level, std::optional<bool>(false));
  EXPECT_EQ(knobs.intra_size, 4);
  EXPECT_EQ(knobs.two_level_max_bytes, std::int64_t{2} << 30);
  EXPECT_EQ(knobs.log_level, LogLevel::kDebug);
  EXPECT_TRUE(knobs.log_hide_time);
}

TEST(Knobs, booleans_have_eight_spellings_in_any_case) {
  for (const char* word : {"1", "true", "YES", "On"}) {
    EXPECT_TRUE(good({{"HOROVOD_DYNAMIC_PROCESS_SETS", word}}).dynamic_process_sets) << word;
  }
  for (const char* word : {"0", "False", "no", "OFF"}) {
    EXPECT_FALSE(good({{"HOROVOD_DYNAMIC_PROCESS_SETS", word}}).dynamic_process_sets) << word;
  }
  EXPECT_EQ(error_of("HOROVOD_DYNAMIC_PROCESS_SETS", "2"),
            "HOROVOD_DYNAMIC_PROCESS_SETS=\"2\": expected 0, 1, true, false, yes, no, on or off");
}

TEST(Knobs, byte_sizes_take_binary_suffixes_and_refuse_overflow) {
  const auto threshold = [](const char* text) {
    return good({{"LIGHT_FUSION_THRESHOLD", text}}).fusion_threshold_bytes;
  };
  EXPECT_EQ(threshold("0"), 0);
  EXPECT_EQ(threshold("1000"), 1000);
  EXPECT_EQ(threshold("3k"), 3 << 10);
  EXPECT_EQ(threshold("3M"), 3 << 20);
  EXPECT_EQ(threshold("3G"), std::int64_t{3} << 30);
  EXPECT_EQ(threshold("1024G"), std::int64_t{1} << 40);
  for (const char* text : {"1025G",
                           "9223372036854775807G",
                           "9223372036854775808",
                           "-1",
                           "-1K",
                           "K",
                           "1KB",
                           "1.5M",
                           "0x10",
                           "1 M",
                           " 1"}) {
    EXPECT_EQ(error_of("LIGHT_FUSION_THRESHOLD", text),
              "LIGHT_FUSION_THRESHOLD=\"" + std::string(text) +
                  "\": expected bytes, an integer from 0 to 1024G, K, M or G may follow");
  }
}

TEST(Knobs, the_whole_value_must_be_a_number_in_range) {
  EXPECT_EQ(error_of("LIGHT_PEER_TIMEOUT", "abc"),
            "LIGHT_PEER_TIMEOUT=\"abc\": expected seconds, a number from 0.1 to 86400");
  for (const char* text : {"4s", "0", "0.09", "86400.1", "-4", "nan", "inf", "1e99", "1,5", " 4"}) {
    error_of("LIGHT_PEER_TIMEOUT", text);
  }
  EXPECT_EQ(good({{"LIGHT_PEER_TIMEOUT", "0.1"}}).peer_timeout_s, 0.1);
  EXPECT_EQ(good({{"LIGHT_PEER_TIMEOUT", "86400"}}).peer_timeout_s, 86400);
  EXPECT_EQ(error_of("LIGHT_NUM_STREAMS", "9"),
            "LIGHT_NUM_STREAMS=\"9\": expected an integer from 1 to 8");
}

TEST(Knobs, words_are_checked_and_their_case_is_not) {
  EXPECT_EQ(good({{"LIGHT_GPU_OPERATIONS", "NCCL"}}).gpu_operations, "nccl");
  EXPECT_EQ(error_of("LIGHT_GPU_OPERATIONS", "nc"),
            "LIGHT_GPU_OPERATIONS=\"nc\": expected one of auto, nccl, host, mpi");
  EXPECT_EQ(error_of("LIGHT_NET", "rdma"),
            "LIGHT_NET=\"rdma\": expected one of tcp, harp, or the path of a file (with a slash)");
  EXPECT_EQ(good({{"LIGHT_NET", "HARP"}}).net, "harp");
  EXPECT_EQ(good({{"LIGHT_NET", "/opt/libnccl-net-X.so"}}).net, "/opt/libnccl-net-X.so");
  error_of("LIGHT_NET", "/" + std::string(4095, 'a'));
  error_of("LIGHT_FUSION_STRATEGY", "none, auto_fusion");
  for (const char* strategy :
       {"none", "auto_fusion", "piecewise_fusion", "scopewise_fusion", "horovod"}) {
    EXPECT_EQ(good({{"LIGHT_FUSION_STRATEGY", strategy}}).fusion_strategy, strategy);
  }
}

TEST(Knobs, log_levels_are_horovods_words) {
  const std::vector<std::pair<const char*, LogLevel>> levels = {{"trace", LogLevel::kTrace},
                                                                {"debug", LogLevel::kDebug},
                                                                {"info", LogLevel::kInfo},
                                                                {"WARNING", LogLevel::kWarning},
                                                                {"error", LogLevel::kError},
                                                                {"fatal", LogLevel::kFatal}};
  for (const auto& [word, level] : levels) {
    EXPECT_EQ(good({{"HOROVOD_LOG_LEVEL", word}}).log_level, level) << word;
  }
  EXPECT_EQ(
      error_of("HOROVOD_LOG_LEVEL", "loud"),
      "HOROVOD_LOG_LEVEL=\"loud\": expected one of trace, debug, info, warning, error, fatal");
}

TEST(Knobs, the_light_name_wins_over_horovods) {
  const Knobs knobs = good({{"LIGHT_LOG_LEVEL", "info"}, {"HOROVOD_LOG_LEVEL", "error"}});
  EXPECT_EQ(knobs.log_level, LogLevel::kInfo);
  EXPECT_EQ(good({{"HOROVOD_GLOO_IFACE", "eth7"}}).iface, "eth7");
}

TEST(Knobs, the_larger_start_timeout_counts) {
  const auto timeout = [](const char* start, const char* gloo) {
    return good({{"HOROVOD_START_TIMEOUT", start}, {"HOROVOD_GLOO_TIMEOUT_SECONDS", gloo}})
        .start_timeout_s;
  };
  EXPECT_EQ(timeout("10", "20"), 20);
  EXPECT_EQ(timeout("20", "10"), 20);
  EXPECT_EQ(timeout("10", ""), 10);  // Below the default, which counts only when neither is set.
}

TEST(Knobs, an_empty_value_counts_as_unset) {
  EXPECT_EQ(good({{"LIGHT_PEER_TIMEOUT", ""}}).peer_timeout_s, 30);
  EXPECT_EQ(good({{"LIGHT_IFACE", ""}, {"HOROVOD_GLOO_IFACE", "eth1"}}).iface, "eth1");
}

TEST(Knobs, errors_show_hostile_values_safely) {
  const std::string message = error_of("LIGHT_NUM_STREAMS", "\n\x1b" + std::string(5000, 'a'));
  EXPECT_LT(message.size(), 200U);
  EXPECT_EQ(message.find('\n'), std::string::npos);
  EXPECT_TRUE(message.starts_with("LIGHT_NUM_STREAMS=\"??aaa"));
}

TEST(Knobs, the_launch_line_of_lightcc_users_is_honoured) {
  const Environment line = {{"HOROVOD_FUSION_THRESHOLD", "0"},
                            {"HOROVOD_CYCLE_TIME", "0"},
                            {"HOROVOD_MPI_THREADS_DISABLE", "1"},
                            {"LIGHT_2D_ALLREDUCE", "1"},
                            {"LIGHT_TOPK_ALLREDUCE", "1"},
                            {"LIGHT_TOPK_THRESHOLD", "2097152"},
                            {"LIGHT_INTRA_SIZE", "8"}};
  EXPECT_EQ(good(line).fusion_strategy, "");  // So auto_fusion, which the others leave alone.
  EXPECT_EQ(good(line).horovod_threshold_bytes, 0);
  EXPECT_EQ(good(line).horovod_cycle_ms, 0);
  EXPECT_EQ(good(line).two_level, std::optional<bool>(true));
  EXPECT_EQ(good(line).intra_size, 8);
  EXPECT_TRUE(good(line).topk);
  EXPECT_EQ(good(line).topk_min_bytes, 2097152);
}

TEST(Knobs, shared_ones_are_listed_as_they_stand_in_the_environment) {
  const std::vector<std::string> defaults = {"LIGHT_NET=tcp",
                                             "LIGHT_GPU_OPERATIONS=auto",
                                             "LIGHT_FUSION_STRATEGY=",
                                             "LIGHT_FUSION_SCHEDULE=",
                                             "LIGHT_NUM_STREAMS=1",
                                             "LIGHT_2D_ALLREDUCE=",
                                             "LIGHT_INTRA_SIZE=0",
                                             "LIGHT_HIERARCHICAL_THRESHOLD=1G",
                                             "LIGHT_QUANTIZE_ALLREDUCE=",
                                             "LIGHT_TOPK_ALLREDUCE=0",
                                             "LIGHT_TOPK_OPTIMIZER=1",
                                             "LIGHT_TOPK_RATIO=0.01",
                                             "LIGHT_TOPK_THRESHOLD=1M",
                                             "LIGHT_TOPK_FP16=0"};
  EXPECT_EQ(shared_knobs(good({})), defaults);
  const std::vector<std::string> set = {"LIGHT_NET=harp",
                                        "LIGHT_GPU_OPERATIONS=nccl",
                                        "LIGHT_FUSION_STRATEGY=horovod",
                                        "LIGHT_FUSION_SCHEDULE=",
                                        "LIGHT_NUM_STREAMS=3",
                                        "LIGHT_2D_ALLREDUCE=1",
                                        "LIGHT_INTRA_SIZE=2",
                                        "LIGHT_HIERARCHICAL_THRESHOLD=5000",
                                        "LIGHT_QUANTIZE_ALLREDUCE=int8",
                                        "LIGHT_TOPK_ALLREDUCE=1",
                                        "LIGHT_TOPK_OPTIMIZER=0",
                                        "LIGHT_TOPK_RATIO=0.001",
                                        "LIGHT_TOPK_THRESHOLD=2M",
                                        "LIGHT_TOPK_FP16=1"};
  EXPECT_EQ(shared_knobs(good({{"LIGHT_NET", "harp"},
                               {"HOROVOD_GPU_OPERATIONS", "NCCL"},
                               {"LIGHT_FUSION_STRATEGY", "horovod"},
                               {"LIGHT_NUM_STREAMS", "3"},
                               {"LIGHT_2D_ALLREDUCE", "on"},
                               {"LIGHT_INTRA_SIZE", "2"},
                               {"LIGHT_HIERARCHICAL_THRESHOLD", "5000"},
                               {"LIGHT_QUANTIZE_ALLREDUCE", "int8"},
                               {"LIGHT_TOPK_ALLREDUCE", "1"},
                               {"LIGHT_TOPK_OPTIMIZER", "0"},
                               {"LIGHT_TOPK_RATIO", "1e-3"},
                               {"LIGHT_TOPK_THRESHOLD", "2097152"},
                               {"LIGHT_TOPK_FP16", "yes"}})),
            set);
}

TEST(Knobs, accepted_variables_are_checked_too) {
  EXPECT_EQ(error_of("LIGHT_TOPK_RATIO", "2"),
            "LIGHT_TOPK_RATIO=\"2\": expected a number from 1e-06 to 1");
  error_of("LIGHT_2D_ALLREDUCE", "maybe");
  error_of("HOROVOD_CYCLE_TIME", "fast");
  error_of("LIGHT_SIZE", "0");
}

TEST(Knobs, unknown_light_variables_are_named_with_their_nearest_neighbour) {
  const std::vector<std::string> warnings = knob_warnings(
      {"PATH", "LIGHT_PEER_TIMEOUT", "LIGHT_PEER_TIMOUT", "LIGHTCC_HOROVOD", "LIGHT_TOPK_RATIOS"});
  EXPECT_EQ(
      warnings,
      (std::vector<std::string>{"unknown variable \"LIGHT_PEER_TIMOUT\"; the nearest known name is "
                                "LIGHT_PEER_TIMEOUT",
                                "unknown variable \"LIGHT_TOPK_RATIOS\"; the nearest known name is "
                                "LIGHT_TOPK_RATIO"}));
}

TEST(Knobs, horovod_variables_are_reported_where_they_are_misspelt_or_have_no_effect) {
  EXPECT_EQ(knob_warnings({"HOROVOD_CYCLE_TIMES", "HOROVOD_FUSION_SOMETHING_ELSE"}),
            (std::vector<std::string>{
                "unknown variable \"HOROVOD_CYCLE_TIMES\"; the nearest known name is "
                "HOROVOD_CYCLE_TIME"}));
  EXPECT_EQ(knob_warnings({"HOROVOD_GLOO_IFACES"}),
            (std::vector<std::string>{
                "unknown variable \"HOROVOD_GLOO_IFACES\"; the nearest known name is "
                "HOROVOD_GLOO_IFACE"}));
  EXPECT_EQ(knob_warnings({"HOROVOD_THREAD_AFFINITY"}),
            (std::vector<std::string>{"HOROVOD_THREAD_AFFINITY has no effect. Bind the ranks with "
                                      "taskset or numactl in the command."}));
  for (const char* const name : {"HOROVOD_HIERARCHICAL_ALLREDUCE",
                                 "HOROVOD_HIERARCHICAL_ALLGATHER",
                                 "HOROVOD_AUTOTUNE",
                                 "HOROVOD_NUM_NCCL_STREAMS"}) {
    EXPECT_EQ(knob_warnings({name}).size(), 1U) << name;
  }
}

TEST(Knobs, what_works_and_what_others_set_is_not_reported) {
  EXPECT_EQ(knob_warnings({"",
                           "HOROVOD_",
                           "HOROVOD_CYCLE_TIME",
                           "HOROVOD_GLOO_IFACE",
                           "HOROVOD_LOCAL_RANK",
                           "HOROVOD_CONTROLLER",
                           "HOROVOD_CPU_OPERATIONS",
                           "HOROVOD_WITH_PYTORCH",
                           "HOROVOD_GPU_OPERATIONS",
                           "HOROVOD_VERSION",
                           "HOROVOD_SRC",
                           "HOROVOD_HOME"}),
            std::vector<std::string>{});
}

TEST(Knobs, an_absurdly_long_name_is_reported_briefly) {
  const auto warnings = knob_warnings({"LIGHT_" + std::string(1 << 20, 'X')});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_LT(warnings[0].size(), 300U);
}

TEST(KnobTable, names_are_unique_and_rows_are_complete) {
  std::set<std::string> names;
  for (const KnobRow& row : knob_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.aliases.empty() || names.insert(row.aliases).second) << row.aliases;
    EXPECT_FALSE(row.type.empty()) << row.name;
    EXPECT_TRUE(row.meaning.ends_with('.')) << row.name;
    EXPECT_TRUE(row.used_by == "engine" || row.used_by == "launcher" || row.used_by == "package" ||
                row.used_by == "accepted")
        << row.name;
  }
}

TEST(KnobTable, every_documented_default_is_a_legal_value) {
  for (const KnobRow& row : knob_table()) {
    const auto knobs = read_knobs(from({{row.name, row.default_value}}));
    EXPECT_TRUE(knobs.ok()) << knobs.status().message();
  }
}

TEST(KnobTable, defaults_are_documented_as_a_user_would_write_them) {
  std::map<std::string, KnobRow> rows;
  for (const KnobRow& row : knob_table()) {
    rows[row.name] = row;
  }
  EXPECT_EQ(rows["LIGHT_FUSION_THRESHOLD"].default_value, "64M");
  EXPECT_EQ(rows["LIGHT_FUSION_THRESHOLD"].unit, "bytes");
  EXPECT_EQ(rows["LIGHT_PEER_TIMEOUT"].default_value, "30");
  EXPECT_EQ(rows["LIGHT_PEER_TIMEOUT"].type, "number, 0.1 to 86400");
  EXPECT_EQ(rows["HOROVOD_STALL_CHECK_DISABLE"].default_value, "0");
  EXPECT_EQ(rows["LIGHT_LOG_LEVEL"].default_value, "warning");
  EXPECT_EQ(rows["LIGHT_LOG_LEVEL"].aliases, "HOROVOD_LOG_LEVEL");
}

TEST(ProcessEnvironment, tells_unset_from_set) {
  ASSERT_EQ(setenv("LIGHT_TEST_ONLY", "x", 1), 0);  // NOLINT(concurrency-mt-unsafe): one thread
  EXPECT_EQ(process_environment()("LIGHT_TEST_ONLY"), std::optional<std::string>("x"));
  ASSERT_EQ(unsetenv("LIGHT_TEST_ONLY"), 0);  // NOLINT(concurrency-mt-unsafe): as above
  EXPECT_EQ(process_environment()("LIGHT_TEST_ONLY"), std::nullopt);
}

}  // namespace
}  // namespace lightcc::knobs_test
