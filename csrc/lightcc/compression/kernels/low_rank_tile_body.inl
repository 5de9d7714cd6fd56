// Low-rank compression of a tile, as vectors of the compiler's: included by the file of each SIMD
// level, in an anonymous namespace, after kVectorBytes: what one register of the level holds.

template <typename T>
struct LaneTraits;

template <>
struct LaneTraits<float> {
  using Vector [[gnu::vector_size(kVectorBytes), gnu::may_alias]] = float;
  // may_alias: lanes lie in bytes.
  using Loose [[gnu::vector_size(kVectorBytes), gnu::aligned(1), gnu::may_alias]] = float;
  using Lane [[gnu::aligned(1), gnu::may_alias]] = float;
  using Truth [[gnu::vector_size(kVectorBytes)]] = std::int32_t;
  static constexpr float kLimit = 0x1p100F;
};

template <>
struct LaneTraits<double> {
  using Vector [[gnu::vector_size(kVectorBytes), gnu::may_alias]] = double;
  using Loose [[gnu::vector_size(kVectorBytes), gnu::aligned(1), gnu::may_alias]] = double;
  using Lane [[gnu::aligned(1), gnu::may_alias]] = double;
  using Truth [[gnu::vector_size(kVectorBytes)]] = std::int64_t;
  static constexpr double kLimit = 0x1p900;
};

template <typename T>
constexpr std::size_t kWidth = kVectorBytes / sizeof(T);
/// Products are added up in so many bytes of lanes, whatever a register holds: each has its part.
constexpr std::size_t kSumBytes = 64;
constexpr std::size_t kParts = kSumBytes / kVectorBytes;
/// Rows that share what is loaded of the right factor.
constexpr std::size_t kRows = 4;
constexpr std::size_t kMaxVectors = 64;

/// M of a tile; zeros fill the last 64 bytes of a row, and rows up to a multiple of kRows.
template <typename T>
struct Sum {
  // NOLINTNEXTLINE(modernize-avoid-c-arrays): no header of the standard library.
  alignas(64) T lanes[kLowRankTileRows * kLowRankTileCols];
  std::size_t vectors = 0;
  std::size_t rows = 0;

  using Vector = LaneTraits<T>::Vector;
  [[gnu::always_inline]] const Vector& at(std::size_t row, std::size_t vector) const {
    return *reinterpret_cast<const Vector*>(lanes + row * kLowRankTileCols + vector * kWidth<T>);
  }
};

/// Returns whether all is in range.
template <typename T>
[[gnu::always_inline]] inline bool add_up(const LowRankTile& tile, Sum<T>& sum) {
  using Traits = LaneTraits<T>;
  using Vector = Traits::Vector;
  using Truth = Traits::Truth;
  constexpr std::size_t kLanes = kWidth<T>;
  const T scale = static_cast<T>(tile.scale);
  const std::size_t whole = tile.cols / kLanes;
  sum.vectors = (tile.cols + kParts * kLanes - 1) / (kParts * kLanes) * kParts;
  sum.rows = (tile.rows + kRows - 1) / kRows * kRows;
  Truth good = Vector{} == Vector{};
  for (std::size_t row = 0; row < tile.rows; ++row) {
    const std::byte* x = tile.input == nullptr
                             ? nullptr
                             : tile.input + row * tile.input_stride * sizeof(T);
    const std::byte* kept = tile.residual + row * tile.residual_stride * sizeof(T);
    T* to = sum.lanes + row * kLowRankTileCols;
    for (std::size_t i = 0; i < whole; ++i) {
      Vector m = *reinterpret_cast<const Traits::Loose*>(kept + i * kVectorBytes);
      if (x != nullptr) {
        m += scale * *reinterpret_cast<const Traits::Loose*>(x + i * kVectorBytes);
      }
      good &= (m <= Traits::kLimit) & (m >= -Traits::kLimit);
      *reinterpret_cast<Vector*>(to + i * kLanes) = m;
    }
    if (whole == sum.vectors) {
      continue;
    }
    for (std::size_t i = whole; i < sum.vectors; ++i) {
      *reinterpret_cast<Vector*>(to + i * kLanes) = Vector{};
    }
    for (std::size_t c = whole * kLanes; c < tile.cols; ++c) {
      T m = reinterpret_cast<const Traits::Lane*>(kept)[c];
      if (x != nullptr) {
        m += scale * reinterpret_cast<const Traits::Lane*>(x)[c];
      }
      to[c] = m;
    }
    const Vector last = *reinterpret_cast<const Vector*>(to + whole * kLanes);
    good &= (last <= Traits::kLimit) & (last >= -Traits::kLimit);
  }
  for (std::size_t row = tile.rows; row < sum.rows; ++row) {
    for (std::size_t c = 0; c < sum.vectors * kLanes; ++c) {
      sum.lanes[row * kLowRankTileCols + c] = T{0};
    }
  }
  bool all = true;
  for (std::size_t i = 0; i < kLanes; ++i) {
    all = all && good[i] != 0;
  }
  return all;
}

/// What the rows of the tile have of the left factor; zeros for rows that are none.
template <typename T>
struct Left {
  // NOLINTNEXTLINE(modernize-avoid-c-arrays)
  T lanes[kMaxVectors][kLowRankTileRows];

  [[gnu::always_inline]] explicit Left(const LowRankTile& tile) {
    for (std::size_t j = 0; j < tile.rank; ++j) {
      const auto* from =
          reinterpret_cast<const LaneTraits<T>::Lane*>(tile.left) + j * tile.left_stride;
      for (std::size_t row = 0; row < kLowRankTileRows; ++row) {
        lanes[j][row] = row < tile.rows ? from[row] : T{0};
      }
    }
  }
};

/// Of 64 bytes of lanes, in whose place it leaves others.
template <typename T>
[[gnu::always_inline]] inline T sum_of(T* lanes) {
  for (std::size_t width = kSumBytes / sizeof(T) / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) {
      lanes[i] += lanes[i + width];
    }
  }
  return lanes[0];
}

template <typename T>
[[gnu::always_inline]] inline bool project(const LowRankTile& tile) {
  using Vector = LaneTraits<T>::Vector;
  Sum<T> sum;
  const bool good = add_up(tile, sum);
  for (std::size_t first = 0; first < sum.rows; first += kRows) {
    for (std::size_t j = 0; j < tile.rank; ++j) {
      const auto* right =
          reinterpret_cast<const Vector*>(tile.right + j * tile.right_stride * sizeof(T));
      // NOLINTNEXTLINE(modernize-avoid-c-arrays)
      alignas(64) T lanes[kRows][kSumBytes / sizeof(T)];
      for (std::size_t part = 0; part < kParts; ++part) {
        Vector sum0{};
        Vector sum1{};
        Vector sum2{};
        Vector sum3{};
        for (std::size_t i = part; i < sum.vectors; i += kParts) {
          const Vector r = right[i];
          sum0 += sum.at(first, i) * r;
          sum1 += sum.at(first + 1, i) * r;
          sum2 += sum.at(first + 2, i) * r;
          sum3 += sum.at(first + 3, i) * r;
        }
        *reinterpret_cast<Vector*>(lanes[0] + part * kWidth<T>) = sum0;
        *reinterpret_cast<Vector*>(lanes[1] + part * kWidth<T>) = sum1;
        *reinterpret_cast<Vector*>(lanes[2] + part * kWidth<T>) = sum2;
        *reinterpret_cast<Vector*>(lanes[3] + part * kWidth<T>) = sum3;
      }
      auto* left = reinterpret_cast<LaneTraits<T>::Lane*>(tile.left) + j * tile.left_stride;
      for (std::size_t row = first; row < first + kRows && row < tile.rows; ++row) {
        left[row] += sum_of(lanes[row - first]);
      }
    }
  }
  return good;
}

template <typename T>
[[gnu::always_inline]] inline void collect(const LowRankTile& tile) {
  using Vector = LaneTraits<T>::Vector;
  Sum<T> sum;
  add_up(tile, sum);
  const Left<T> left(tile);
  for (std::size_t i = 0; i < sum.vectors; ++i) {
    for (std::size_t j = 0; j < tile.rank; ++j) {
      auto* right = reinterpret_cast<Vector*>(tile.right + j * tile.right_stride * sizeof(T)) + i;
      Vector total = *right;
      for (std::size_t row = 0; row < sum.rows; row += kRows) {
        total += sum.at(row, i) * left.lanes[j][row];
        total += sum.at(row + 1, i) * left.lanes[j][row + 1];
        total += sum.at(row + 2, i) * left.lanes[j][row + 2];
        total += sum.at(row + 3, i) * left.lanes[j][row + 3];
      }
      *right = total;
    }
  }
}

/// A vector's lanes, of which those from `count` on are none.
template <typename T>
[[gnu::always_inline]] inline void put(const T* lanes, std::byte* to, std::size_t count) {
  using Traits = LaneTraits<T>;
  if (count >= kWidth<T>) {
    *reinterpret_cast<Traits::Loose*>(to) = *reinterpret_cast<const Traits::Loose*>(lanes);
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    reinterpret_cast<Traits::Lane*>(to)[i] = lanes[i];
  }
}

template <typename T>
[[gnu::always_inline]] inline void split(const LowRankTile& tile) {
  using Vector = LaneTraits<T>::Vector;
  constexpr std::size_t kPair = 2;
  Sum<T> sum;
  add_up(tile, sum);
  const Left<T> left(tile);
  const T postscale = static_cast<T>(tile.postscale);
  for (std::size_t first = 0; first < tile.rows; first += kPair) {
    for (std::size_t i = 0; i * kWidth<T> < tile.cols; ++i) {
      // NOLINTNEXTLINE(modernize-avoid-c-arrays)
      Vector shares[kPair] = {};
      // NOLINTNEXTLINE(modernize-avoid-c-arrays)
      Vector results[kPair] = {};
      for (std::size_t j = 0; j < tile.rank; ++j) {
        const std::size_t at = j * tile.right_stride * sizeof(T) + i * kVectorBytes;
        const auto& own = *reinterpret_cast<const Vector*>(tile.right + at);
        const auto& all = *reinterpret_cast<const Vector*>(tile.right_sum + at);
        for (std::size_t row = 0; row < kPair; ++row) {
          shares[row] += own * left.lanes[j][first + row];
          results[row] += all * left.lanes[j][first + row];
        }
      }
      const std::size_t count = tile.cols - i * kWidth<T>;
      for (std::size_t row = 0; row < kPair && first + row < tile.rows; ++row) {
        // NOLINTNEXTLINE(modernize-avoid-c-arrays)
        alignas(64) T lanes[kWidth<T>];
        *reinterpret_cast<Vector*>(lanes) = sum.at(first + row, i) - shares[row];
        const std::size_t at = (first + row) * tile.residual_stride * sizeof(T) + i * kVectorBytes;
        put(lanes, tile.residual + at, count);
        if (tile.out != nullptr) {
          *reinterpret_cast<Vector*>(lanes) = postscale * results[row];
          put(lanes, tile.out + (first + row) * tile.out_stride * sizeof(T) + i * kVectorBytes, count);
        }
      }
    }
  }
}
