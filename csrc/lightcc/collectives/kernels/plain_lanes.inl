// Vectors of what every x86-64 has, for the plain level of kernels. Included inside the anonymous
// namespace of each, so that no level's code can stand in for another's.

using Floats [[gnu::vector_size(16)]] = float;
using Words [[gnu::vector_size(16)]] = std::int32_t;  // Signed: SSE compares no other.
using Shorts [[gnu::vector_size(16)]] = std::uint16_t;

/// Four 16-bit numbers, each in the lower half of a word (little-endian).
[[gnu::always_inline]] inline Words load_words(const std::byte* from) {
  Shorts shorts{};
  __builtin_memcpy(&shorts, from, 8);
  return __builtin_bit_cast(Words,
                            __builtin_shufflevector(shorts, Shorts{}, 0, 8, 1, 9, 2, 10, 3, 11));
}

/// half_to_float() of base/half.hpp, four at a time.
[[gnu::always_inline]] inline Floats halves_to_floats(const std::byte* from) {
  const Words halves = load_words(from);
  const Words magnitude = halves & 0x7fff;
  const Words shifted = magnitude << 13;
  const Words subnormal =
      __builtin_bit_cast(Words, __builtin_convertvector(magnitude, Floats) * 0x1p-24F);
  const Words finite = magnitude < 0x0400 ? subnormal : shifted + (112 << 23);
  const Words result = magnitude >= 0x7c00 ? shifted + (224 << 23) : finite;
  return __builtin_bit_cast(Floats, result | ((halves ^ magnitude) << 16));
}
