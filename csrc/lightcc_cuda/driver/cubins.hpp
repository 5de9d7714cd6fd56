// The kernels as machine code, inside of the library, where it was built with some: for the wheels
// (tools/make_cubins.py). Without, and for any other GPU, the driver compiles PTX (ptx.hpp), which
// takes it a second or two where it has not kept the result.
#pragma once

#include <span>
#include <string_view>

namespace lightcc::cuda {

struct Cubin {
  const char* name;   ///< The file of PTX that it is made of: "bucket".
  int capability;     ///< Which GPUs it is for: 86 is sm_86.
  const char* image;  ///< An ELF file, which says itself how long it is.
};

/// What the library has.
std::span<const Cubin> cubins_in_library();

/// The one for a GPU: of its major number, and of the highest minor number up to its own. Null:
/// there is none.
const Cubin* cubin_for(std::span<const Cubin> cubins, std::string_view name, int capability);

}  // namespace lightcc::cuda
