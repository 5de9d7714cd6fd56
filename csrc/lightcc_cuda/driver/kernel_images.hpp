// The kernels inside of the library: the files of csrc/lightcc_cuda/ptx, and machine code where it
// was built with some, for the wheels (tools/make_cubins.py). For any other GPU the driver compiles
// PTX, which takes it a second or two where it has not kept the result.
#pragma once

#include <span>
#include <string_view>

namespace lightcc::cuda {

struct PtxText {
  const char* name;  ///< Name of the file, without its end: "bucket".
  const char* text;  ///< Ends with a zero byte.
};

std::span<const PtxText> ptx_texts();

struct Cubin {
  const char* name;   ///< That of the PTX it is made of.
  int capability;     ///< Which GPUs it is for: 86 is sm_86.
  const char* image;  ///< An ELF file, which says itself how long it is.
};

/// What the library has.
std::span<const Cubin> cubins_in_library();

/// The one for a GPU: of its major number, and of the highest minor number up to its own. Null:
/// there is none.
const Cubin* cubin_for(std::span<const Cubin> cubins, std::string_view name, int capability);

}  // namespace lightcc::cuda
