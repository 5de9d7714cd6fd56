#include "lightcc/collectives/adasum_work.hpp"

#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include "lightcc/collectives/adasum.hpp"

namespace lightcc {
namespace {

struct FreeDeleter {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Scratch = std::unique_ptr<std::byte, FreeDeleter>;

class AdasumWork final : public Work {
 public:
  AdasumWork(std::unique_ptr<Work> gather,
             Scratch gathered,
             std::size_t members,
             const TensorSpan& tensor,
             const Reduction& reduction,
             SimdLevel simd)
      : gather_(std::move(gather)),
        gathered_(std::move(gathered)),
        members_(members),
        tensor_(tensor),
        reduction_(reduction),
        simd_(simd) {}

  Result<Progress> advance() override {
    LIGHTCC_ASSIGN_OR_RETURN(const Progress progress, gather_->advance());
    if (progress != Progress::kDone || tensor_.out == nullptr) {
      return progress;
    }
    const std::size_t bytes = tensor_.count * element_size(reduction_.dtype);
    std::vector<const std::byte*> vectors;
    vectors.reserve(members_);
    for (std::size_t i = 0; i < members_; ++i) {
      vectors.push_back(gathered_.get() + i * bytes);
    }
    adasum_combine(vectors, tensor_.out, tensor_.count, reduction_.dtype);
    const double factor = reduction_.prescale * reduction_.postscale;
    if (factor != 1.0) {
      const std::array<ReduceSource, 1> source = {ReduceSource{tensor_.out, true}};
      reduce(source,
             tensor_.out,
             nullptr,
             tensor_.count,
             {reduction_.dtype, ReduceOp::kSum, factor, 1.0},
             simd_);
    }
    return Progress::kDone;
  }

 private:
  std::unique_ptr<Work> gather_;
  Scratch gathered_;
  std::size_t members_;
  TensorSpan tensor_;
  Reduction reduction_;
  SimdLevel simd_;
};

}  // namespace

Result<std::unique_ptr<Work>> make_adasum_work(Group& group,
                                               const TensorSpan& tensor,
                                               const Reduction& reduction,
                                               SimdLevel simd) {
  const auto members = static_cast<std::size_t>(group.size());
  const std::size_t bytes = tensor.count * element_size(reduction.dtype);
  constexpr std::size_t kAlignment = 64;
  std::size_t total = 0;
  Scratch gathered;
  if (!__builtin_mul_overflow(bytes, members, &total) && total < ~std::size_t{0} - kAlignment) {
    gathered.reset(static_cast<std::byte*>(
        std::aligned_alloc(kAlignment, (total / kAlignment + 1) * kAlignment)));
  }
  if (gathered == nullptr) {
    return make_error(ErrorCode::kSystem,
                      "cannot allocate %zu times %zu bytes to gather Adasum's contributions",
                      members,
                      bytes);
  }
  auto gather =
      group.allgather(tensor.in, gathered.get(), std::vector<std::size_t>(members, bytes));
  return std::unique_ptr<Work>(std::make_unique<AdasumWork>(
      std::move(gather), std::move(gathered), members, tensor, reduction, simd));
}

}  // namespace lightcc
