// What reduce() hands to the file of one SIMD level. See reduce.hpp for what it all means.
//
// The files of the AVX levels are compiled for instructions that the machine may lack, so nothing
// that they define may be merged by the linker with what other files use: an inline function
// emitted there (a weak symbol) could be the copy that the whole library runs. Hence the rules for
// this header, reduce_body.inl and reduce_avx*.cpp: everything defined is in an anonymous namespace
// or always inlined; from the standard library only <cstddef> and <cstdint>; of lightcc/base only
// types.hpp, whose functions are not called. The test simd_kernels_define_no_weak_symbols holds the
// object files to it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lightcc/base/types.hpp"

namespace lightcc {

/// One contribution to a reduction.
struct ReduceSource {
  const std::byte* data = nullptr;  ///< Null: zeros.
  bool prescale = true;             ///< False for a partial result that is already scaled.
};

namespace detail {

struct ReduceJob {
  const ReduceSource* sources = nullptr;
  std::size_t num_sources = 0;  ///< At least one.
  std::byte* out = nullptr;
  std::byte* out2 = nullptr;  ///< Or null.
  std::size_t count = 0;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
};

/// The AVX functions exist on x86-64 only, and may be called only where the CPU has the level.
void reduce_plain(const ReduceJob& job);
void reduce_avx2(const ReduceJob& job);
void reduce_avx512(const ReduceJob& job);

}  // namespace detail
}  // namespace lightcc
