// All-reduce and reduce-scatter over MPI.
//
// MPI computes with its own operators, in an order of its own. It has neither float16 nor bfloat16:
// they travel as float32, so that they accumulate in float32 and are rounded once, as everywhere.
// Operators of our own on 16 bits would round at every step and keep MPI from using hardware that
// reduces. A bool travels as a byte, 0 or 1. Factors are applied here, before and after.
#pragma once

#include <memory>
#include <vector>

#include "lightcc/collectives/group.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/collectives/mpi_parts.hpp"
#include "lightcc/collectives/mpi_work.hpp"
#include "lightcc/collectives/net_bucket.hpp"

namespace lightcc {

/// Elements of a bucket on their way into MPI's memory and out of it.
class MpiElements {
 public:
  MpiElements(BucketView view, const Reduction& reduction, SimdLevel simd);

  const BucketView& view() const { return view_; }
  std::size_t element_bytes() const;  ///< In MPI's memory.
  MpiHandle type(const MpiLibrary& library) const;
  MpiHandle op(const MpiLibrary& library) const;

  /// Copies the input of `range` to `memory`, scaled.
  void load(ElementRange range, std::byte* memory) const;
  /// Copies results, scaled, to the output of `range`.
  void store(ElementRange range, std::byte* memory) const;

 private:
  bool is_half() const;
  void scale(std::byte* memory, std::size_t count, double factor) const;

  BucketView view_;
  Reduction reduction_;
  SimdLevel simd_;
};

class MpiAllreduce final : public MpiWork {
 public:
  MpiAllreduce(std::shared_ptr<MpiLink> link, MpiElements elements, std::size_t chunk_bytes);

 private:
  std::size_t bytes_of(std::size_t round) const override;
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t round, MpiSlot& slot) override;
  ElementRange range(std::size_t round) const;

  MpiElements elements_;
  std::size_t chunk_;  // Elements.
};

/// The elements, cut into `counts`, one part for each member; this one's part is written.
class MpiReduceScatter final : public MpiWork {
 public:
  MpiReduceScatter(std::shared_ptr<MpiLink> link,
                   MpiElements elements,
                   std::vector<std::size_t> counts,
                   std::size_t chunk_bytes);

 private:
  std::size_t bytes_of(std::size_t round) const override;
  int begin(std::size_t round, MpiSlot& slot) override;
  void end(std::size_t round, MpiSlot& slot) override;

  MpiElements elements_;
  MpiParts parts_;
};

}  // namespace lightcc
