// The kernels as PTX: the files of csrc/lightcc_cuda/ptx, inside of the library.
#pragma once

#include <span>

namespace lightcc::cuda {

struct PtxText {
  const char* name;  ///< Name of the file, without its end: "bucket".
  const char* text;  ///< Ends with a zero byte.
};

std::span<const PtxText> ptx_texts();

}  // namespace lightcc::cuda
