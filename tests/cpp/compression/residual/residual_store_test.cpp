// What is remembered of tensors, and what makes them begin anew.
#include "lightcc/compression/residual/residual_store.hpp"

#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/compression/residual/host_residual.hpp"

namespace lightcc::residual_store_test {
namespace {

constexpr std::size_t kElements = 100;

/// Their memory is not the host's, as far as a store can tell.
class OtherKernels final : public CompressionKernels {
 public:
  Result<std::unique_ptr<ShardResidual>> make_state(DataType dtype, std::size_t numel) override {
    return host_kernels().make_state(dtype, numel);
  }
  Result<std::unique_ptr<ShardResidual>> load_state(std::span<const std::byte> saved) override {
    return host_kernels().load_state(saved);
  }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    return host_kernels().allocate(bytes);
  }
  Result<std::unique_ptr<Work>> compress(std::span<const TopkStep> steps) override {
    return host_kernels().compress(steps);
  }
  Result<std::unique_ptr<Work>> merge(std::span<const TopkSum> sums) override {
    return host_kernels().merge(sums);
  }
};

double residual_of(const TensorResidual& entry, std::size_t element) {
  Bytes saved;
  EXPECT_TRUE(entry.state->save(saved).ok());
  return HostResidual::load(saved)->residual_at(element);
}

/// Sends the largest of 1, 2, 3, ..., so that the others are the residual.
void fill(ResidualStore& store,
          const ResidualStore::Key& key,
          const GridPosition& position = {.blocks = 2}) {
  const auto entry = store.entry(key, ResidualOf::kShard, position, DataType::kFloat32, kElements);
  ASSERT_TRUE(entry.ok());
  HostResidual& state = *(*entry)->state->on_host();
  std::vector<float> shard(state.numel());
  for (std::size_t i = 0; i < shard.size(); ++i) {
    shard[i] = static_cast<float>(i + 1);
  }
  std::vector<std::byte> list(4096);
  const TopkRequest request{.k = 1, .capacity = 1, .exact = true};
  const auto bytes = std::as_bytes(std::span(shard));
  ASSERT_TRUE(state.compress(bytes.data(), request, list).ok());
  state.commit();
  (*entry)->steps = 1;
}

double residual(ResidualStore& store, const ResidualStore::Key& key, std::size_t element) {
  return residual_of(
      **store.entry(key, ResidualOf::kShard, {.blocks = 2}, DataType::kFloat32, kElements),
      element);
}

TEST(ResidualStore, remembers_by_process_set_and_name) {
  ResidualStore store;
  fill(store, {0, "a"});
  EXPECT_EQ(residual(store, {0, "a"}, 3), 4.0);
  EXPECT_EQ(residual(store, {0, "b"}, 3), 0.0);
  EXPECT_EQ(residual(store, {1, "a"}, 3), 0.0);
}

TEST(ResidualStore, a_tensor_that_changed_begins_anew) {
  ResidualStore store;
  for (const auto& [position, dtype, elements] :
       {std::tuple(GridPosition{.blocks = 3}, DataType::kFloat32, kElements),
        std::tuple(GridPosition{.blocks = 2}, DataType::kFloat64, kElements),
        std::tuple(GridPosition{.blocks = 2}, DataType::kFloat32, kElements + 1)}) {
    fill(store, {0, "a"});
    const auto entry = store.entry({0, "a"}, ResidualOf::kShard, position, dtype, elements);
    ASSERT_TRUE(entry.ok());
    EXPECT_EQ((*entry)->steps, 0U);
    EXPECT_EQ(residual_of(**entry, 3), 0.0);
  }
}

TEST(ResidualStore, what_was_kept_back_moves_to_other_kernels_with_its_tensor) {
  ResidualStore store;
  fill(store, {0, "a"});
  OtherKernels others;
  const auto entry = store.entry(
      {0, "a"}, ResidualOf::kShard, {.blocks = 2}, DataType::kFloat32, kElements, others);
  ASSERT_TRUE(entry.ok());
  EXPECT_EQ((*entry)->kernels, &others);
  EXPECT_EQ((*entry)->steps, 1U);
  EXPECT_EQ(residual_of(**entry, 3), 4.0);
  // Only in host memory can all of it be changed.
  const std::vector keys = {ResidualStore::Key{0, "a"}};
  ASSERT_TRUE(store.scale(2.0, keys).ok());
  EXPECT_EQ((*entry)->kernels, &host_kernels());
  EXPECT_EQ(residual_of(**entry, 3), 8.0);
}

TEST(ResidualStore, tells_of_the_steps_that_an_entry_would_have) {
  ResidualStore store;
  fill(store, {0, "a"});
  const GridPosition position{.blocks = 2};
  EXPECT_EQ(store.steps_of({0, "a"}, position, DataType::kFloat32, kElements), 1U);
  EXPECT_EQ(store.steps_of({0, "a"}, position, DataType::kFloat64, kElements), 0U);
  EXPECT_EQ(store.steps_of({0, "b"}, position, DataType::kFloat32, kElements), 0U);
}

TEST(ResidualStore, forgets_a_process_set) {
  ResidualStore store;
  fill(store, {0, "a"});
  fill(store, {1, "a"});
  store.forget(1);
  EXPECT_EQ(store.size(), 1U);
  EXPECT_EQ(residual(store, {0, "a"}, 3), 4.0);
}

TEST(ResidualStore, takes_in_what_it_saved) {
  ResidualStore store;
  fill(store, {0, "a"});
  const auto saved = store.save();
  ASSERT_TRUE(saved.ok());
  ASSERT_EQ(saved->size(), 1U);
  ResidualStore other;
  const auto checked = other.check({2, "b"}, saved->front().second);
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->dtype, DataType::kFloat32);
  EXPECT_EQ(checked->elements, kElements);
  EXPECT_EQ(checked->steps, 1U);
  EXPECT_EQ(other.size(), 0U);
  ASSERT_TRUE(other.load({2, "b"}, saved->front().second).ok());
  EXPECT_EQ(residual(other, {2, "b"}, 3), 4.0);
  const auto entry =
      other.entry({2, "b"}, ResidualOf::kShard, {.blocks = 2}, DataType::kFloat32, kElements);
  EXPECT_EQ((*entry)->steps, 1U);
}

TEST(ResidualStore, refuses_what_was_cut_or_changed_anywhere) {
  ResidualStore store;
  fill(store, {0, "a"});
  const Bytes saved = store.save()->front().second;
  for (std::size_t length = 0; length < saved.size(); ++length) {
    const Status status = store.load({0, "a"}, std::span(saved).first(length));
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << length;
    EXPECT_FALSE(store.check({0, "a"}, std::span(saved).first(length)).ok()) << length;
  }
  Bytes other = saved;
  other.back() ^= std::byte{1};
  EXPECT_EQ(store.load({0, "a"}, other).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(residual(store, {0, "a"}, 3), 4.0);  // As before.
}

TEST(ResidualStore, scales_what_it_is_asked_to) {
  ResidualStore store;
  fill(store, {0, "a"});
  fill(store, {0, "b"});
  const std::vector<ResidualStore::Key> keys = {{0, "a"}, {0, "never seen"}};
  ASSERT_TRUE(store.scale(0.5, keys).ok());
  EXPECT_EQ(residual(store, {0, "a"}, 3), 2.0);
  EXPECT_EQ(residual(store, {0, "b"}, 3), 4.0);
  for (const double factor : {0.0, -1.0, 1.0 / 0.0}) {
    EXPECT_EQ(store.scale(factor, keys).code(), ErrorCode::kInvalidArgument);
  }
}

TEST(ResidualStore, what_is_kept_back_counts_as_under_the_factor_of_then) {
  ResidualStore store;
  const ResidualStore::Key key{0, "a"};
  ASSERT_TRUE(store.set_factor(key, 0.25).ok());  // There is none yet.
  fill(store, key);
  ASSERT_TRUE(store.set_factor(key, 0.25).ok());  // By now it is not known.
  EXPECT_EQ(residual(store, key, 3), 4.0);
  ASSERT_TRUE(store.set_factor(key, 0.25).ok());
  EXPECT_EQ(residual(store, key, 3), 4.0);
  ASSERT_TRUE(store.set_factor(key, 0.5).ok());
  EXPECT_EQ(residual(store, key, 3), 2.0);
  for (const double none : {0.0, -0.5, 1.0 / 0.0}) {
    ASSERT_TRUE(store.set_factor(key, none).ok());
    EXPECT_EQ(residual(store, key, 3), 2.0);
  }
}

TEST(ResidualStore, saves_the_factor) {
  ResidualStore store;
  const ResidualStore::Key key{0, "a"};
  fill(store, key);
  ASSERT_TRUE(store.set_factor(key, 0.25).ok());
  const Bytes saved = store.save()->front().second;
  ResidualStore other;
  ASSERT_TRUE(other.load(key, saved).ok());
  ASSERT_TRUE(other.set_factor(key, 0.5).ok());
  EXPECT_EQ(residual(other, key, 3), 2.0);

  Bytes older = saved;  // What it is of, at byte 1, and factors, at bytes 9 to 17, came later.
  older.erase(older.begin() + 1);
  older[0] = std::byte{2};
  EXPECT_TRUE(other.load(key, older).ok());
  older[0] = std::byte{1};
  older.erase(older.begin() + 8, older.begin() + 16);
  ASSERT_TRUE(other.load(key, older).ok());
  ASSERT_TRUE(other.set_factor(key, 0.5).ok());
  EXPECT_EQ(residual(other, key, 3), 4.0);
}

TEST(ResidualStore, a_tensor_on_its_way_is_not_touched) {
  ResidualStore store;
  const ResidualStore::Key key{0, "a"};
  fill(store, key);
  const Bytes saved = store.save()->front().second;
  const auto entry =
      store.entry(key, ResidualOf::kShard, {.blocks = 2}, DataType::kFloat32, kElements);
  std::vector<float> shard(kElements, 1.0F);
  std::byte* const data = std::as_writable_bytes(std::span(shard)).data();
  ASSERT_TRUE((*entry)->state->on_host()->flush_into(data).ok());
  EXPECT_EQ(store.save().status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.check(key, saved).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.load(key, saved).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.scale(2.0, std::vector{key}).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(store.set_factor(key, 2.0).ok());
  EXPECT_EQ((*entry)->send_factor, 0.0);
  (*entry)->state->rollback();
  EXPECT_TRUE(store.save().ok());
}

}  // namespace
}  // namespace lightcc::residual_store_test
