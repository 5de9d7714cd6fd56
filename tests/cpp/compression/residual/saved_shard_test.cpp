// Saved states: golden bytes, exact resumption, damage, and other numbers of shards.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "lightcc/base/sha256.hpp"
#include "lightcc/compression/topk/topk_plan.hpp"

#include "compression/topk_testing.hpp"

namespace lightcc::saved_shard_test {
namespace {

using namespace lightcc::testing;  // NOLINT(google-build-using-namespace)

/// A state of two elements after a step that sent the first one; then comes the checksum.
const std::vector<unsigned> kGolden = {
    'l', 'c', 'c',  't',  'o', 'p', 'k', 1,     // magic, version
    7,   0,                                     // float32, no velocity
    2,   0,   0,    0,    0,   0,   0,   0,     // elements
    1,   0,   0,    0,    0,   0,   0,   0,     // step
    0,   0,   0,    0,    0,   0,   0,   0x40,  // threshold 2.0
    0,   0,   0,    0,    0,   0,   0,   0x40,  // of the step itself
    1,   0,   0,    0,    0,   0,   0,   0,     // k
    0,   0,   0,    0,                          // residual 0.0
    0,   0,   0x80, 0x3f,                       // residual 1.0
};

/// The last 32 bytes made right again after a change.
void sign(Buffer& bytes) {
  const auto digest = sha256(std::span(bytes).first(bytes.size() - 32));
  std::copy(digest.begin(), digest.end(), bytes.end() - 32);
}

HostResidual after_steps(DataType dtype, std::size_t numel, int steps, double momentum) {
  Rng rng(41);
  HostResidual state(dtype, numel);
  TopkRequest request = about(topk_k(numel, 0.05), numel, detect_simd_level());
  request.momentum = momentum;
  for (int step = 0; step < steps; ++step) {
    compress(state, tensor_of(dtype, normal_values(rng, numel)), request);
    state.commit();
  }
  return state;
}

TEST(SavedShard, golden_bytes_are_written_and_read) {
  HostResidual state(DataType::kFloat32, 2);
  compress(state, tensor_of(DataType::kFloat32, {2.0, 1.0}), exactly(1, SimdLevel::kPlain));
  state.commit();
  Buffer golden = bytes_of(kGolden);
  golden.resize(golden.size() + 32);
  sign(golden);
  EXPECT_EQ(saved(state), golden);
  const auto loaded = HostResidual::load(golden);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->step(), 1U);
  EXPECT_EQ(loaded->threshold(), 2.0);
  EXPECT_EQ(residual_of(*loaded), (std::vector<double>{0.0, 1.0}));
}

TEST(SavedShard, a_loaded_state_goes_on_bit_for_bit) {
  for (const DataType dtype : kFloatTypes) {
    for (const double momentum : {0.0, 0.9}) {
      HostResidual state = after_steps(dtype, 70000, 6, momentum);
      auto loaded = HostResidual::load(saved(state));
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      HostResidual& other = *loaded;
      EXPECT_EQ(other.has_velocity(), momentum != 0.0);
      Rng rng(42);
      TopkRequest request = about(topk_k(70000, 0.05), 70000, detect_simd_level());
      request.momentum = momentum;
      for (int step = 0; step < 4; ++step) {
        const Buffer shard = tensor_of(dtype, normal_values(rng, 70000));
        ASSERT_EQ(compress(state, shard, request).list, compress(other, shard, request).list);
        state.commit();
        other.commit();
        ASSERT_EQ(saved(state), saved(other));
      }
    }
  }
}

/// The magnitudes at both ends of a type's range, and what is between.
std::vector<double> magnitudes_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return {0.0, 0x1p-24, 1.0, 65504.0};
    case DataType::kFloat64:
      // Beyond float32 as well: samples are taken in it.
      return {0.0, 0x1p-1074, 1e-320, 1e-200, 1.0, 3.4e38, 1e300, 1.7e308};
    default:
      return {0.0, 0x1p-149, 1e-40, 1.0, 3.39e38};
  }
}

TEST(SavedShard, every_state_that_steps_lead_to_can_be_loaded) {
  const std::size_t numel = 3000;
  const TopkRequest request = about(topk_k(numel, 0.05), numel, detect_simd_level());
  for (const DataType dtype : kFloatTypes) {
    for (const double magnitude : magnitudes_of(dtype)) {
      for (const bool constant : {true, false}) {
        for (const double factor : {1.0, 0x1p-1000, 1e300}) {
          HostResidual state(dtype, numel);
          Rng rng(43);
          for (int step = 0; step < 5; ++step) {
            std::vector<double> values(numel, magnitude);
            for (double& value : values) {
              value *= constant ? 1.0 : rng.unit();
            }
            // Residuals add up beyond the largest number; then a step is skipped.
            compress(state, tensor_of(dtype, values), request);
            state.commit();
            if (step == 2) {
              ASSERT_TRUE(state.scale(factor).ok());
            }
            const auto loaded = HostResidual::load(saved(state));
            ASSERT_TRUE(loaded.ok())
                << loaded.status().message() << ": " << data_type_name(dtype) << " of " << magnitude
                << ", step " << step << ", threshold " << state.threshold();
            ASSERT_EQ(saved(*loaded), saved(state));
          }
        }
      }
    }
  }
}

TEST(SavedShard, an_empty_shard_has_a_state) {
  const HostResidual state(DataType::kFloat64, 0);
  const auto loaded = HostResidual::load(saved(state));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->numel(), 0U);
}

TEST(SavedShard, any_changed_byte_is_an_error) {
  const Buffer good = saved(after_steps(DataType::kBfloat16, 40, 2, 0.5));
  for (std::size_t at = 0; at < good.size(); ++at) {
    Buffer bad = good;
    bad[at] ^= std::byte{1};
    const auto loaded = HostResidual::load(bad);
    ASSERT_FALSE(loaded.ok()) << at;
    EXPECT_EQ(loaded.status().code(), ErrorCode::kInvalidArgument);
  }
}

TEST(SavedShard, any_other_length_is_an_error) {
  const Buffer good = saved(after_steps(DataType::kFloat32, 10, 2, 0.0));
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(HostResidual::load(std::span(good).first(length)).ok());
  }
  Buffer longer = good;
  longer.push_back({});
  EXPECT_FALSE(HostResidual::load(longer).ok());
}

TEST(SavedShard, errors_say_what_is_wrong) {
  const Buffer good = saved(after_steps(DataType::kFloat32, 10, 2, 0.0));
  const auto message = [&](std::size_t at, unsigned value, bool signs) {
    Buffer bad = good;
    bad[at] = static_cast<std::byte>(value);
    if (signs) {
      sign(bad);
    }
    const auto loaded = HostResidual::load(bad);
    return loaded.ok() ? std::string("it loaded") : loaded.status().message();
  };
  const auto expect = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(message(0, 'L', true), "does not begin");
  expect(message(7, 9, true), "version 9");
  expect(message(60, 0x55, false), "checksum");
  expect(message(8, 4, true), "element type 4");
  expect(message(9, 2, true), "out of range");
  expect(message(10, 11, true), "11 elements");
  expect(message(17, 255, true), "elements");
  expect(message(33, 0xc0, true), "out of range");  // A negative threshold.
  Buffer bad = good;
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(bad.data() + 50, &infinity, sizeof(infinity));
  sign(bad);
  expect(HostResidual::load(bad).status().message(), "not finite");
  expect(HostResidual::load(std::span(good).first(20)).status().message(), "cut short");
  const std::string_view other = "lcclowr\1";
  expect(HostResidual::load(as_bytes(other)).status().message(),
         "PowerSGD, which lightcc no longer has");
}

}  // namespace
}  // namespace lightcc::saved_shard_test
