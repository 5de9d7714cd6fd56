// Reductions on the simulator, against reduce(), bit for bit.
#include <array>
#include <optional>

#include "lightcc/collectives/kernels/reduce.hpp"

#include "lightcc_cuda/cuda_testing.hpp"
#include "lightcc_cuda/kernels/reduce.hpp"

namespace lightcc::cuda::cuda_reduce_test {
namespace {

using testing::Region;
using testing::seed;

using Kernel = void (*)(ReduceArguments);

/// By DataType.
constexpr std::array<Kernel, kDataTypeCount> kKernels = {lightcc_reduce_u8,
                                                         lightcc_reduce_i8,
                                                         lightcc_reduce_u16,
                                                         lightcc_reduce_i16,
                                                         lightcc_reduce_i32,
                                                         lightcc_reduce_i64,
                                                         lightcc_reduce_f16,
                                                         lightcc_reduce_f32,
                                                         lightcc_reduce_f64,
                                                         lightcc_reduce_bool,
                                                         lightcc_reduce_bf16};

struct Case {
  Reduction reduction;
  std::size_t count = 0;
  std::size_t num_sources = 1;
  bool aligned = true;
};

void expect_equal_bits(const Case& c, Rng& rng) {
  const std::size_t bytes = element_size(c.reduction.dtype);
  std::vector<Region> sources;
  std::vector<ReduceSource> cpu;
  ReduceArguments arguments{};
  for (std::size_t k = 0; k < c.num_sources; ++k) {
    sources.emplace_back(c.count * bytes, c.aligned ? 0 : rng.below(16)).randomize(rng);
  }
  for (std::size_t k = 0; k < c.num_sources; ++k) {
    const bool is_there = rng.below(6) != 0;
    const bool prescales = rng.below(3) != 0;
    cpu.push_back({.data = is_there ? sources[k].bytes() : nullptr, .prescale = prescales});
    arguments.sources[k] = is_there ? sources[k].data() : nullptr;
    arguments.prescaled |= u64{prescales} << k;
  }
  Region wanted(c.count * bytes);
  reduce(cpu, wanted.bytes(), nullptr, c.count, c.reduction, SimdLevel::kPlain);
  Region apart(c.count * bytes);
  const bool in_place = cpu.back().data != nullptr && rng.below(2) == 0;
  Region& out = in_place ? sources.back() : apart;
  arguments.out = out.data();
  arguments.count = c.count;
  arguments.prescale = c.reduction.prescale;
  arguments.postscale = c.reduction.postscale;
  arguments.num_sources = static_cast<u32>(c.num_sources);
  arguments.op = static_cast<u32>(c.reduction.op);
  testing::run(kKernels[static_cast<std::size_t>(c.reduction.dtype)],
               static_cast<u32>(1 + rng.below(3)),
               kReduceThreads,
               arguments,
               rng);
  EXPECT_EQ(out, wanted);
}

TEST(CudaReduce, every_type_and_operator_has_the_bits_of_reduce) {
  for (std::uint8_t type = 0; type < kDataTypeCount; ++type) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      const auto dtype = static_cast<DataType>(type);
      if (!is_reducible(dtype, op)) {
        continue;
      }
      Rng rng(seed() * 1000 + type);
      for (const bool aligned : {true, false}) {
        Case c{.reduction = {.dtype = dtype, .op = op},
               .count = 900 + rng.below(300),
               .num_sources = 1 + rng.below(5),
               .aligned = aligned};
        if (rng.below(2) == 0) {
          c.reduction.prescale = 0.75;
          c.reduction.postscale = -1.0 / 3;
        }
        LIGHTCC_TRACE(data_type_name(dtype)
                      << " " << reduce_op_name(op) << " of " << c.num_sources);
        expect_equal_bits(c, rng);
      }
    }
  }
}

TEST(CudaReduce, takes_as_many_sources_as_its_arguments_hold) {
  Rng rng(seed());
  expect_equal_bits(
      {.reduction = {.dtype = DataType::kInt16}, .count = 1000, .num_sources = kMaxReduceSources},
      rng);
}

TEST(CudaReduce, counts_around_the_seams_of_accesses_are_complete) {
  for (std::size_t count = 0; count < 18; ++count) {
    LIGHTCC_TRACE(count << " elements");
    Rng rng(seed() + count);
    expect_equal_bits(
        {.reduction = {.dtype = DataType::kBfloat16}, .count = count, .num_sources = 3}, rng);
  }
}

}  // namespace
}  // namespace lightcc::cuda::cuda_reduce_test
