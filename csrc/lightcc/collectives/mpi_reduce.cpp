#include "lightcc/collectives/mpi_reduce.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "lightcc/base/half.hpp"
#include "lightcc/collectives/kernels/float_mode.hpp"

namespace lightcc {
namespace {

// Not inlined into the scope of IeeeFloatMode; see there.
template <float (*Widen)(std::uint16_t)>
[[gnu::noinline]] void widen_all(const std::byte* in,
                                 std::byte* out,
                                 std::size_t count,
                                 float factor) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half = 0;
    std::memcpy(&half, in + i * sizeof(half), sizeof(half));
    const float value = Widen(half) * factor;
    std::memcpy(out + i * sizeof(value), &value, sizeof(value));
  }
}

template <std::uint16_t (*Narrow)(float)>
[[gnu::noinline]] void narrow_all(const std::byte* in,
                                  std::byte* out,
                                  std::size_t count,
                                  float factor) {
  for (std::size_t i = 0; i < count; ++i) {
    float value = 0;
    std::memcpy(&value, in + i * sizeof(value), sizeof(value));
    const std::uint16_t half = Narrow(value * factor);
    std::memcpy(out + i * sizeof(half), &half, sizeof(half));
  }
}

}  // namespace

MpiElements::MpiElements(BucketView view, const Reduction& reduction, SimdLevel simd)
    : view_(std::move(view)), reduction_(reduction), simd_(simd) {}

bool MpiElements::is_half() const {
  return reduction_.dtype == DataType::kFloat16 || reduction_.dtype == DataType::kBfloat16;
}

std::size_t MpiElements::element_bytes() const {
  return is_half() ? sizeof(float) : view_.element_bytes();
}

MpiHandle MpiElements::type(const MpiLibrary& library) const {
  return is_half()                             ? library.type_of(DataType::kFloat32)
         : reduction_.dtype == DataType::kBool ? library.byte()
                                               : library.type_of(reduction_.dtype);
}

MpiHandle MpiElements::op(const MpiLibrary& library) const {
  if (reduction_.dtype == DataType::kBool && reduction_.op == ReduceOp::kProduct) {
    return library.op_of(ReduceOp::kMin);  // "And", of 0 and 1.
  }
  return library.op_of(reduction_.op);
}

void MpiElements::load(ElementRange range, std::byte* memory) const {
  if (!is_half()) {
    view_.pack(range, memory);
    // A bool may be any byte but 0; the kernels make it 1.
    if (reduction_.prescale != 1.0 || reduction_.dtype == DataType::kBool) {
      scale(memory, range.count, reduction_.prescale);
    }
    return;
  }
  const IeeeFloatMode mode;
  const auto factor = static_cast<float>(reduction_.prescale);
  view_.for_each_piece(range, [&](const TensorSpan& piece, std::size_t offset) {
    std::byte* const into = memory + offset * sizeof(float);
    if (piece.in == nullptr) {
      std::memset(into, 0, piece.count * sizeof(float));
    } else if (reduction_.dtype == DataType::kFloat16) {
      widen_all<half_to_float>(piece.in, into, piece.count, factor);
    } else {
      widen_all<bfloat16_to_float>(piece.in, into, piece.count, factor);
    }
  });
}

void MpiElements::store(ElementRange range, std::byte* memory) const {
  if (!is_half()) {
    if (reduction_.postscale != 1.0 && reduction_.dtype != DataType::kBool) {
      scale(memory, range.count, reduction_.postscale);
    }
    view_.unpack(range, 0, std::span(memory, range.count * view_.element_bytes()));
    return;
  }
  const IeeeFloatMode mode;
  const auto factor = static_cast<float>(reduction_.postscale);
  view_.for_each_piece(range, [&](const TensorSpan& piece, std::size_t offset) {
    const std::byte* const from = memory + offset * sizeof(float);
    if (piece.out == nullptr) {
      return;
    }
    if (reduction_.dtype == DataType::kFloat16) {
      narrow_all<float_to_half>(from, piece.out, piece.count, factor);
    } else {
      narrow_all<float_to_bfloat16>(from, piece.out, piece.count, factor);
    }
  });
}

void MpiElements::scale(std::byte* memory, std::size_t count, double factor) const {
  const std::array<ReduceSource, 1> source = {ReduceSource{memory, true}};
  reduce(source,
         memory,
         nullptr,
         count,
         {.dtype = reduction_.dtype, .op = reduction_.op, .prescale = factor, .postscale = 1.0},
         simd_);
}

MpiAllreduce::MpiAllreduce(std::shared_ptr<MpiLink> link,
                           MpiElements elements,
                           std::size_t chunk_bytes)
    : MpiWork(std::move(link), "MPI_Iallreduce"),
      elements_(std::move(elements)),
      chunk_(std::max<std::size_t>(chunk_bytes / elements_.element_bytes(), 1)) {
  set_rounds((elements_.view().total_elements() + chunk_ - 1) / chunk_);
}

ElementRange MpiAllreduce::range(std::size_t round) const {
  const std::size_t first = round * chunk_;
  return {first, std::min(chunk_, elements_.view().total_elements() - first)};
}

std::size_t MpiAllreduce::bytes_of(std::size_t round) const {
  return range(round).count * elements_.element_bytes();
}

int MpiAllreduce::begin(std::size_t round, MpiSlot& slot) {
  elements_.load(range(round), slot.memory.get());
  return mpi().iallreduce(link().library().in_place(),
                          slot.memory.get(),
                          static_cast<int>(range(round).count),
                          elements_.type(link().library()),
                          elements_.op(link().library()),
                          link().comm(),
                          &slot.request);
}

void MpiAllreduce::end(std::size_t round, MpiSlot& slot) {
  elements_.store(range(round), slot.memory.get());
}

MpiReduceScatter::MpiReduceScatter(std::shared_ptr<MpiLink> link,
                                   MpiElements elements,
                                   std::vector<std::size_t> counts,
                                   std::size_t chunk_bytes)
    : MpiWork(std::move(link), "MPI_Ireduce_scatter"),
      elements_(std::move(elements)),
      parts_(std::move(counts), chunk_bytes / elements_.element_bytes()) {
  set_rounds(parts_.rounds());
}

std::size_t MpiReduceScatter::bytes_of(std::size_t round) const {
  return parts_.count_of(round) * elements_.element_bytes();
}

int MpiReduceScatter::begin(std::size_t round, MpiSlot& slot) {
  slot.counts.clear();
  std::byte* into = slot.memory.get();
  for (std::size_t member = 0; member < parts_.members(); ++member) {
    const ElementRange piece = parts_.range(round, member);
    elements_.load(piece, into);
    into += piece.count * elements_.element_bytes();
    slot.counts.push_back(static_cast<int>(piece.count));
  }
  return mpi().ireduce_scatter(link().library().in_place(),
                               slot.memory.get(),
                               slot.counts.data(),
                               elements_.type(link().library()),
                               elements_.op(link().library()),
                               link().comm(),
                               &slot.request);
}

void MpiReduceScatter::end(std::size_t round, MpiSlot& slot) {
  elements_.store(parts_.range(round, static_cast<std::size_t>(link().rank())), slot.memory.get());
}

}  // namespace lightcc
