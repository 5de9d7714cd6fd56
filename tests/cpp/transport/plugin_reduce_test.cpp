// Reductions of two members over NCCL net plugins: out of the plugin's own memory where it shows
// what arrives (HARP), by whichever thread drives it, else out of staging.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/net/net_group.hpp"
#include "lightcc/collectives/work.hpp"

#include "transport/plugin_test_support.hpp"

namespace lightcc::plugin_reduce_test {
namespace {

using namespace plugin_test;  // NOLINT: the tests' own helpers

constexpr std::array<std::size_t, 4> kCounts = {1'000'003, 1, 77, 300'000};

float input_of(std::size_t member, std::size_t index) {
  return static_cast<float>(index % 1021 + member * 3);
}

/// One member: a transport, a group, tensors in place.
struct Member {
  explicit Member(const char* path) : transport(make_transport(make_options(path))) {}

  void fill(std::size_t member) {
    std::size_t index = 0;
    for (std::size_t t = 0; t < kCounts.size(); ++t) {
      tensors[t].resize(kCounts[t]);
      for (float& value : tensors[t]) {
        value = input_of(member, index++);
      }
    }
  }
  std::vector<TensorSpan> spans() {
    std::vector<TensorSpan> all;
    for (auto& tensor : tensors) {
      auto* const data = reinterpret_cast<std::byte*>(tensor.data());
      all.push_back({.in = data, .out = data, .count = tensor.size()});
    }
    return all;
  }
  /// True when the Work is over.
  bool advance() {
    (void)must(transport->poll());
    return must(work->advance()) == Progress::kDone;
  }

  std::unique_ptr<Transport> transport;
  std::unique_ptr<Group> group;
  std::unique_ptr<Work> work;
  std::array<std::vector<float>, kCounts.size()> tensors;
};

class PluginReduceTest : public ::testing::TestWithParam<PluginUnderTest> {};
INSTANTIATE_TEST_SUITE_P(all, PluginReduceTest, ::testing::ValuesIn(kPlugins), plugin_name);

TEST_P(PluginReduceTest, sums_are_exact_also_where_the_plugins_own_thread_drives) {
  std::array<Member, 2> members{Member(GetParam().path), Member(GetParam().path)};
  const std::vector<NetMember> who{{.world_rank = 0, .handle = members[0].transport->handle()},
                                   {.world_rank = 1, .handle = members[1].transport->handle()}};
  for (int i = 0; i < 2; ++i) {
    members[static_cast<std::size_t>(i)].group = make_net_group(
        *members[static_cast<std::size_t>(i)].transport, who, i, 5, 0, {.chunk_bytes = 1 << 20});
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < 2; ++i) {
      members[i].fill(i);
      members[i].work = members[i].group->allreduce(
          members[i].spans(), {.dtype = DataType::kFloat32, .op = ReduceOp::kSum});
    }
    std::array<bool, 2> done{};
    for (int turn = 0; !done[0] || !done[1]; ++turn) {
      for (std::size_t i = 0; i < 2; ++i) {
        done[i] = done[i] || members[i].advance();
      }
      if (turn % 20 == 19) {  // Long enough for HARP's background driver to see to it.
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
    }
    for (Member& member : members) {
      member.work.reset();
      std::size_t index = 0;
      for (const auto& tensor : member.tensors) {
        for (const float value : tensor) {
          ASSERT_EQ(value, input_of(0, index) + input_of(1, index)) << index;
          ++index;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lightcc::plugin_reduce_test
