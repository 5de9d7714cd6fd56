// Adasum's tree, dot products and element types, see adasum.hpp.
#include "lightcc/collectives/adasum.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "lightcc/base/half.hpp"
#include "lightcc/collectives/kernels/float_mode.hpp"

namespace lightcc {
namespace {

// How elements become numbers and back. Node: what inner nodes are kept in.
template <typename T>
struct Native {
  using Element = T;
  using Node = T;
  static Node load(Element x) { return x; }
  static Element store(Node x) { return x; }
};
struct Half {
  using Element = std::uint16_t;
  using Node = float;
  static Node load(Element x) { return half_to_float(x); }
  static Element store(Node x) { return float_to_half(x); }
};
struct Bfloat16 {
  using Element = std::uint16_t;
  using Node = float;
  static Node load(Element x) { return bfloat16_to_float(x); }
  static Element store(Node x) { return float_to_bfloat16(x); }
};

struct Products {
  double a_b = 0;
  double a_a = 0;
  double b_b = 0;
};

// Eight interleaved partial sums per block, added up pairwise; blocks one after another. Fixed, so
// that a wider machine gets the same bits, and blocked, so that the error grows with the number of
// blocks instead of elements.
constexpr std::size_t kLanes = 8;
constexpr std::size_t kBlock = 4096;

constexpr double kTiny = 0x1p-511;  // sqrt(DBL_MIN)

double sum_lanes(const std::array<double, kLanes>& x) {
  return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

template <typename Node>
Products block_products(const Node* a, const Node* b, std::size_t count) {
  std::array<double, kLanes> a_b{};
  std::array<double, kLanes> a_a{};
  std::array<double, kLanes> b_b{};
  const auto add = [&](std::size_t lane, std::size_t i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    a_b[lane] += x * y;
    a_a[lane] += x * x;
    b_b[lane] += y * y;
  };
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      add(lane, i + lane);
    }
  }
  for (std::size_t lane = 0; i + lane < count; ++lane) {
    add(lane, i + lane);
  }
  return {sum_lanes(a_b), sum_lanes(a_a), sum_lanes(b_b)};
}

/// a = Adasum(a, b).
template <typename Node>
void combine(std::vector<Node>& a, const std::vector<Node>& b) {
  Products sum;
  for (std::size_t at = 0; at < a.size(); at += kBlock) {
    const std::size_t count = std::min(kBlock, a.size() - at);
    const Products block = block_products(a.data() + at, b.data() + at, count);
    sum.a_b += block.a_b;
    sum.a_a += block.a_a;
    sum.b_b += block.b_b;
  }
  const double a_factor = sum.a_a >= kTiny ? 1.0 - sum.a_b / sum.a_a * 0.5 : 1.0;
  const double b_factor = sum.b_b >= kTiny ? 1.0 - sum.a_b / sum.b_b * 0.5 : 1.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<Node>(a_factor * static_cast<double>(a[i]) +
                             b_factor * static_cast<double>(b[i]));
  }
}

template <typename Type>
std::vector<typename Type::Node> load_leaf(const std::byte* vector, std::size_t count) {
  std::vector<typename Type::Node> leaf(count);
  for (std::size_t i = 0; vector != nullptr && i < count; ++i) {
    typename Type::Element element;
    std::memcpy(&element, vector + i * sizeof(element), sizeof(element));
    leaf[i] = Type::load(element);
  }
  return leaf;
}

/// The tree, built from the left as a binary counter counts: a node that has grown as high as its
/// left neighbour merges with it. What then is left, ever lower to the right, merges from the
/// right, which is where an odd one that passed through levels meets its partner.
template <typename Type>
[[gnu::noinline]] void combine_tree(std::span<const std::byte* const> vectors,
                                    std::byte* out,
                                    std::size_t count) {
  using Node = Type::Node;
  std::vector<std::vector<Node>> pending;
  const auto merge_last_two = [&pending] {
    const std::vector<Node> right = std::move(pending.back());
    pending.pop_back();
    combine(pending.back(), right);
  };
  for (std::size_t k = 0; k < vectors.size(); ++k) {
    pending.push_back(load_leaf<Type>(vectors[k], count));
    // The trailing ones of k: how often leaf k completes a pair.
    for (std::size_t rest = k; (rest & 1) != 0; rest >>= 1) {
      merge_last_two();
    }
  }
  while (pending.size() > 1) {
    merge_last_two();
  }
  for (std::size_t i = 0; i < count; ++i) {
    const typename Type::Element element = Type::store(pending.front()[i]);
    std::memcpy(out + i * sizeof(element), &element, sizeof(element));
  }
}

}  // namespace

void adasum_combine(std::span<const std::byte* const> vectors,
                    std::byte* out,
                    std::size_t count,
                    DataType dtype) {
  if (vectors.empty() || count == 0) {
    return;
  }
  const IeeeFloatMode mode;
  switch (dtype) {
    case DataType::kFloat16:
      return combine_tree<Half>(vectors, out, count);
    case DataType::kBfloat16:
      return combine_tree<Bfloat16>(vectors, out, count);
    case DataType::kFloat32:
      return combine_tree<Native<float>>(vectors, out, count);
    case DataType::kFloat64:
      return combine_tree<Native<double>>(vectors, out, count);
    default:
      return;
  }
}

}  // namespace lightcc
