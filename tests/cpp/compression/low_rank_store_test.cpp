// What the store remembers of tensors that travel at low rank.
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/topk_host_kernels.hpp"
#include "lightcc/compression/topk_regroup.hpp"
#include "lightcc/compression/topk_store.hpp"

#include "compression/low_rank_testing.hpp"

namespace lightcc::low_rank_store_test {
namespace {

using testing::Buffer;
using testing::normal_values;
using testing::residual_of;
using testing::tensor_of;

constexpr MatrixShape kMatrix{12, 20};
constexpr GridPosition kPosition{.blocks = 2};

TopkKernels& kernels() {
  static HostTopkKernels host(SimdLevel::kPlain);
  return host;
}

/// A plane that can do none of it.
class OtherKernels final : public TopkKernels {
 public:
  Result<std::unique_ptr<TopkShardState>> make_state(DataType dtype, std::size_t numel) override {
    return kernels().make_state(dtype, numel);
  }
  Result<std::unique_ptr<TopkShardState>> load_state(std::span<const std::byte> saved) override {
    return kernels().load_state(saved);
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return kernels().allocate(bytes);
  }
  Result<std::unique_ptr<Work>> merge(std::span<const TopkListView> lists,
                                      std::byte* out,
                                      std::size_t elements,
                                      DataType dtype,
                                      double postscale) override {
    return kernels().merge(lists, out, elements, dtype, postscale);
  }
  Result<std::unique_ptr<Work>> check_finite(const std::byte* data,
                                             std::size_t elements,
                                             DataType dtype,
                                             bool& non_finite) override {
    return kernels().check_finite(data, elements, dtype, non_finite);
  }
};

std::shared_ptr<TopkEntry> entry_of(TopkStore& store,
                                    const TopkStore::Key& key,
                                    std::size_t rank = 2,
                                    const GridPosition& position = kPosition,
                                    const MatrixShape& matrix = kMatrix) {
  auto entry = store.low_rank_entry(key, position, DataType::kFloat32, matrix, rank, kernels());
  EXPECT_TRUE(entry.ok());
  return entry.ok() ? *entry : nullptr;
}

/// A step by itself.
void fill(TopkEntry& entry, std::uint64_t seed = 1) {
  Rng rng(seed);
  LowRankState& state = *entry.low_rank;
  const Buffer input = tensor_of(DataType::kFloat32, normal_values(rng, state.numel()));
  Buffer left(state.left_elems() * sizeof(float));
  Buffer right(state.right_elems() * sizeof(float));
  ASSERT_TRUE(state.project(input.data(), 1.0, left.data()).ok());
  ASSERT_TRUE(state.orthonormalise(left.data()));
  ASSERT_TRUE(state.collect(left.data(), right.data()).ok());
  ASSERT_TRUE(state.finish(left.data(), right.data(), 1.0, nullptr).ok());
  ++entry.steps;
}

TEST(LowRankStore, remembers_by_name) {
  TopkStore store(kernels());
  fill(*entry_of(store, {0, "a"}));
  EXPECT_EQ(entry_of(store, {0, "a"})->low_rank->step(), 1U);
  EXPECT_EQ(entry_of(store, {0, "b"})->low_rank->step(), 0U);
  EXPECT_EQ(entry_of(store, {1, "a"})->low_rank->step(), 0U);
}

TEST(LowRankStore, another_rank_keeps_what_was_kept_back) {
  TopkStore store(kernels());
  fill(*entry_of(store, {0, "a"}));
  const auto kept = residual_of(*entry_of(store, {0, "a"})->low_rank);
  const auto entry = entry_of(store, {0, "a"}, 5);
  EXPECT_EQ(entry->low_rank->rank(), 5U);
  EXPECT_EQ(residual_of(*entry->low_rank), kept);
  EXPECT_EQ(entry->steps, 1U);
}

TEST(LowRankStore, a_tensor_that_changed_begins_anew) {
  TopkStore store(kernels());
  fill(*entry_of(store, {0, "a"}));
  EXPECT_EQ(entry_of(store, {0, "a"}, 2, {.blocks = 3})->steps, 0U);
  fill(*entry_of(store, {0, "a"}));
  EXPECT_EQ(entry_of(store, {0, "a"}, 2, kPosition, {20, 12})->steps, 0U);
}

TEST(LowRankStore, another_compressor_begins_anew) {
  TopkStore store(kernels());
  const TopkStore::Key key{0, "a"};
  fill(*entry_of(store, key));
  const auto shards = store.entry(key, kPosition, DataType::kFloat32, 240, kernels());
  ASSERT_TRUE(shards.ok());
  EXPECT_EQ((*shards)->low_rank, nullptr);
  EXPECT_EQ((*shards)->steps, 0U);
  const auto entry = entry_of(store, key);
  EXPECT_EQ(entry->state, nullptr);
  EXPECT_NE(entry->low_rank, nullptr);
}

TEST(LowRankStore, takes_in_what_it_saved) {
  TopkStore store(kernels());
  fill(*entry_of(store, {0, "a"}));
  const auto saved = store.save();
  ASSERT_TRUE(saved.ok());
  TopkStore other(kernels());
  const auto checked = other.check({2, "b"}, saved->front().second);
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->elements, 240U);
  EXPECT_EQ(checked->steps, 1U);
  ASSERT_TRUE(other.load({2, "b"}, saved->front().second).ok());
  const auto entry = entry_of(other, {2, "b"});
  EXPECT_EQ(entry->steps, 1U);
  EXPECT_EQ(residual_of(*entry->low_rank), residual_of(*entry_of(store, {0, "a"})->low_rank));
}

TEST(LowRankStore, refuses_what_was_cut_or_changed) {
  TopkStore store(kernels());
  fill(*entry_of(store, {0, "a"}));
  Bytes saved = store.save()->front().second;
  for (std::size_t length = 0; length < saved.size(); ++length) {
    EXPECT_EQ(store.load({0, "a"}, std::span(saved).first(length)).code(),
              ErrorCode::kInvalidArgument)
        << length;
  }
  saved[2] ^= std::byte{1};  // Of the number of elements.
  EXPECT_EQ(store.load({0, "a"}, saved).code(), ErrorCode::kInvalidArgument);
}

TEST(LowRankStore, scales_what_is_kept_back) {
  TopkStore store(kernels());
  const TopkStore::Key key{0, "a"};
  fill(*entry_of(store, key));
  auto kept = residual_of(*entry_of(store, key)->low_rank);
  ASSERT_TRUE(store.scale(0.5, std::vector{key}).ok());
  for (double& value : kept) {
    value *= 0.5;
  }
  EXPECT_EQ(residual_of(*entry_of(store, key)->low_rank), kept);
}

TEST(LowRankStore, a_tensor_on_its_way_is_not_touched) {
  TopkStore store(kernels());
  const TopkStore::Key key{0, "a"};
  const auto entry = entry_of(store, key);
  fill(*entry);
  const Bytes saved = store.save()->front().second;
  Buffer left(entry->low_rank->left_elems() * sizeof(float));
  ASSERT_TRUE(entry->low_rank->project(nullptr, 1.0, left.data()).ok());
  EXPECT_EQ(store.save().status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.load(key, saved).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.scale(2.0, std::vector{key}).code(), ErrorCode::kInvalidArgument);
  entry->low_rank->rollback();
  EXPECT_TRUE(store.save().ok());
}

TEST(LowRankStore, states_of_a_block_are_divided_among_another_number_of_members) {
  std::vector<Bytes> saved;
  std::vector<double> sum(240);
  for (std::size_t member = 0; member < 2; ++member) {
    TopkStore store(kernels());
    const auto entry =
        entry_of(store, {0, "a"}, 2, {.blocks = 2, .block = 1, .members = 2, .member = member});
    fill(*entry);
    const auto kept = residual_of(*entry->low_rank);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      sum[i] += kept[i];
    }
    saved.push_back(store.save()->front().second);
  }
  const std::vector<std::span<const std::byte>> parts(saved.begin(), saved.end());
  const GridPosition alone{.blocks = 2, .block = 1};
  const auto whole = reshard_topk(parts, alone);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  TopkStore store(kernels());
  ASSERT_TRUE(store.load({0, "a"}, *whole).ok());
  const auto entry = entry_of(store, {0, "a"}, 2, alone);
  EXPECT_EQ(entry->steps, 1U);
  const auto kept = residual_of(*entry->low_rank);
  for (std::size_t i = 0; i < sum.size(); ++i) {
    ASSERT_NEAR(kept[i], sum[i], 1e-5);
  }
  const std::vector<std::span<const std::byte>> swapped = {parts[1], parts[0]};
  EXPECT_EQ(reshard_topk(swapped, alone).status().code(), ErrorCode::kInvalidArgument);
}

TEST(LowRankStore, a_plane_without_it_says_so) {
  TopkStore store(kernels());
  OtherKernels others;
  const TopkStore::Key key{0, "a"};
  const auto made = store.low_rank_entry(key, kPosition, DataType::kFloat32, kMatrix, 2, others);
  EXPECT_EQ(made.status().code(), ErrorCode::kUnimplemented);
  EXPECT_NE(made.status().message().find("PowerSGD"), std::string::npos);
  EXPECT_EQ(store.size(), 0U);
  fill(*entry_of(store, key));
  EXPECT_EQ(
      store.low_rank_entry(key, kPosition, DataType::kFloat32, kMatrix, 2, others).status().code(),
      ErrorCode::kUnimplemented);
  EXPECT_EQ(entry_of(store, key)->steps, 1U);  // Where it was, it is still.
}

}  // namespace
}  // namespace lightcc::low_rank_store_test
