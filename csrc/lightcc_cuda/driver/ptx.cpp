#include "lightcc_cuda/driver/ptx.hpp"

#include <array>

// LIGHTCC_PTX_FOLDER is CMake's, which also knows that the files are part of this source.
#define LIGHTCC_PTX_FILES(X) \
  X(bucket)                  \
  X(merge)                   \
  X(topk_encode)             \
  X(topk_measure)            \
  X(topk_pack)               \
  X(topk_select)             \
  X(topk_threshold)

#define LIGHTCC_EMBED(name)                     \
  __asm__(                                      \
      ".pushsection .rodata\n"                  \
      ".hidden lightcc_ptx_" #name              \
      "\n"                                      \
      ".global lightcc_ptx_" #name              \
      "\n"                                      \
      "lightcc_ptx_" #name                      \
      ":\n"                                     \
      ".incbin \"" LIGHTCC_PTX_FOLDER "/" #name \
      ".ptx\"\n"                                \
      ".byte 0\n"                               \
      ".popsection\n");                         \
  extern "C" __attribute__((visibility("hidden"))) const char lightcc_ptx_##name[];
LIGHTCC_PTX_FILES(LIGHTCC_EMBED)

namespace lightcc::cuda {

std::span<const PtxText> ptx_texts() {
#define LIGHTCC_PTX_ROW(name) PtxText{#name, lightcc_ptx_##name},
  static constexpr std::array kTexts{LIGHTCC_PTX_FILES(LIGHTCC_PTX_ROW)};
#undef LIGHTCC_PTX_ROW
  return kTexts;
}

}  // namespace lightcc::cuda
