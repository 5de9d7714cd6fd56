// How near what a compressed all-reduce gave comes to the sum of the same step, on sampled steps.
// (Essay: sampled_sum.cpp.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/taken_in_turns.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/compression/compressed_item.hpp"
#include "lightcc/compression/topk_kernels.hpp"
#include "lightcc/compression/topk_store.hpp"

namespace lightcc {

/// A tensor of a bucket whose step is sampled.
struct SampledTensor {
  CompressedTensor tensor;
  std::uint32_t process_set = 0;
  std::string name;
};

/// Adds what `numel` elements of `dtype` have: those of a dense all-reduce and those of a
/// compressed one. Any alignment.
void add_to_sums(DataType dtype,
                 const std::byte* dense,
                 const std::byte* given,
                 std::size_t numel,
                 SampleSums& sums);

/// Whether the next step of a tensor is one of every `every` that are sampled; 0: none is. The same
/// on all ranks.
bool is_sampled(const TopkEntry& entry, std::uint64_t every);

/// A dense all-reduce of `sampled` over `group`, then `compressed`, which has these tensors among
/// others, then the comparison, which goes to the tensors' usage and to `samples`. Tensors get what
/// `compressed` alone would give them. `group` and `samples` outlive the Work. Errors: kSystem when
/// there is no memory for the sums; those of both all-reduces.
Result<std::unique_ptr<Work>> make_sampled_allreduce(Group& group,
                                                     std::vector<SampledTensor> sampled,
                                                     const Reduction& reduction,
                                                     TakenInTurns<TensorSample>& samples,
                                                     std::unique_ptr<Work> compressed);

}  // namespace lightcc
