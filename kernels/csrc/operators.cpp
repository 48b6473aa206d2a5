// What a solve does at an evaluation beyond f, for float32 and float64 on the CPU.
//
// A leaf of the state is a matrix (samples, entries), whose rows are contiguous; a history is
// (samples, slots, entries). The Python form in equilibria/solve is the reference for all of it.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

// The loops are compiled for several processors, and the best is chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#define INLINE inline __attribute__((always_inline))

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t GRAIN = 1 << 15;  // entries, beneath which one thread is faster than several

// A matrix (samples, entries), or a history (samples, slots, entries).
template <typename T>
struct Block {
  T* data;
  int64_t samples, entries, row, slot;

  T* at(int64_t sample, int64_t place = 0) const { return data + sample * row + place * slot; }
};

template <typename T>
Block<T> block(const Tensor& x) {
  const bool history = x.dim() == 3;
  return {
      static_cast<T*>(x.mutable_data_ptr()), x.size(0), x.size(history ? 2 : 1), x.stride(0),
      history ? x.stride(1) : 0};
}

template <typename T>
std::vector<Block<T>> blocks(const Tensors& tensors) {
  std::vector<Block<T>> out;
  out.reserve(tensors.size());
  for (const auto& x : tensors) out.push_back(block<T>(x));
  return out;
}

// Is it a matrix of these samples, with contiguous rows, in the host's memory?
bool regular(const Tensor& x, ScalarType dtype, int64_t samples) {
  return x.dim() == 2 && x.size(0) == samples && x.scalar_type() == dtype && x.is_cpu() &&
         (x.stride(1) == 1 || x.size(1) == 1);
}

bool regular(const Tensors& tensors, ScalarType dtype, int64_t samples) {
  for (const auto& x : tensors) {
    if (!regular(x, dtype, samples)) return false;
  }
  return true;
}

template <typename F>
void each_sample(int64_t samples, int64_t entries, const F& work) {
  if (samples * entries < 2 * GRAIN) {
    work(0, samples);
  } else {
    torch::stable::parallel_for(0, samples, std::max<int64_t>(1, GRAIN / entries), work);
  }
}

template <typename T>
int64_t entries_of(const std::vector<Block<T>>& leaves) {
  int64_t total = 0;
  for (const auto& leaf : leaves) total += leaf.entries;
  return total;
}

// --- the look at an evaluation --------------------------------------------------------------------

// Rows of the table that the solver keeps of its samples.
enum Row {
  ARRIVAL, LOW, TOP, GROWTH, RTOL, ABSOLUTE, BEST, RELATIVE, SIZE, SCALE, BETTER, ARRIVED, ENDED
};

// What has happened: every sample has come closer; some have fallen back; some have arrived; these
// were the last; what the solver has to see to. See `Glance` in equilibria/solve/glance.py.
enum Verdict : int64_t {
  UNSUPPORTED = -1, CLOSER = 0, SOME_BACK = 1, SOME_ARRIVED = 2, ALL_ARRIVED = 4, EVENT = 8
};

struct Squares {
  double size, scale;
};

template <typename T>
INLINE Squares squares(const T* z, const T* f, T* residual, int64_t entries) {
  double size = 0, scale = 0;
  if (residual) {
#pragma omp simd reduction(+ : size, scale)
    for (int64_t i = 0; i < entries; ++i) {
      const T gap = f[i] - z[i];
      residual[i] = gap;
      size += double(gap) * double(gap);
      scale += double(f[i]) * double(f[i]);
    }
  } else {
#pragma omp simd reduction(+ : size, scale)
    for (int64_t i = 0; i < entries; ++i) {
      const T gap = f[i] - z[i];
      size += double(gap) * double(gap);
      scale += double(f[i]) * double(f[i]);
    }
  }
  return {size, scale};
}

CLONES Squares squares_of(const float* z, const float* f, float* residual, int64_t entries) {
  return squares(z, f, residual, entries);
}

CLONES Squares squares_of(const double* z, const double* f, double* residual, int64_t entries) {
  return squares(z, f, residual, entries);
}

// Infinite where the squares leave the range of the state's own numbers, as without the operators.
template <typename T>
T root(double square) {
  const bool inside = square <= double(std::numeric_limits<T>::max());
  return inside ? T(std::sqrt(square)) : T(std::sqrt(square) + std::numeric_limits<double>::infinity());
}

template <typename T>
void measure(
    const Tensor& z, const Tensor& f, const std::optional<Tensor>& residual, const Block<T>& rows,
    bool first_leaf) {
  const auto at = block<T>(z), image = block<T>(f);
  const auto gap = residual ? block<T>(*residual) : Block<T>{};
  T *size = rows.at(SIZE), *scale = rows.at(SCALE);
  each_sample(at.samples, at.entries, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      T* place = gap.data ? gap.at(s) : nullptr;
      auto sum = squares_of(at.at(s), image.at(s), place, at.entries);
      if (!first_leaf) {
        sum.size += double(size[s]) * double(size[s]);
        sum.scale += double(scale[s]) * double(scale[s]);
      }
      size[s] = root<T>(sum.size);
      scale[s] = root<T>(sum.scale);
    }
  });
}

template <typename T>
int64_t judge(const Block<T>& rows, int64_t evals) {
  T *arrival = rows.at(ARRIVAL), *low = rows.at(LOW), *best = rows.at(BEST);
  T *relative = rows.at(RELATIVE), *better = rows.at(BETTER), *arrived = rows.at(ARRIVED);
  T* ended = rows.at(ENDED);
  const T *top = rows.at(TOP), *growth = rows.at(GROWTH);
  const T *rtol = rows.at(RTOL), *absolute = rows.at(ABSOLUTE);
  const T *size = rows.at(SIZE), *scale = rows.at(SCALE);
  bool back = false, any_arrived = false, runs = false, quiet = true;
  for (int64_t s = 0; s < rows.entries; ++s) {
    // A comparison with what is not a number is false.
    const T ratio = size[s] / (scale[s] * rtol[s] + absolute[s]);
    const bool running = arrival[s] > 0;
    better[s] = ratio <= best[s] || !running;
    arrived[s] = ratio < arrival[s];
    const bool known = (arrived[s] || ratio >= arrival[s]) && std::isfinite(scale[s]);
    const bool inside = size[s] >= low[s] && size[s] <= top[s];
    quiet = quiet && known && inside && !(arrived[s] && scale[s] > growth[s]);
    back = back || !better[s];
    any_arrived = any_arrived || arrived[s];
    runs = runs || (running && !arrived[s]);
  }
  if (!quiet) return EVENT;
  for (int64_t s = 0; s < rows.entries; ++s) {
    if (better[s] && arrival[s] > 0) {
      best[s] = size[s] / (scale[s] * rtol[s] + absolute[s]);
      relative[s] = size[s] == 0 ? T(0) : size[s] / scale[s];
    }
    if (arrived[s]) {
      arrival[s] = low[s] = -std::numeric_limits<T>::infinity();
      ended[s] = T(evals);
    }
  }
  return (back ? SOME_BACK : CLOSER) | (any_arrived ? SOME_ARRIVED : CLOSER) |
         (any_arrived && !runs ? ALL_ARRIVED : CLOSER);
}

template <typename T>
int64_t look_at(
    const Tensor& z, const Tensor& f, const std::optional<Tensor>& residual, const Tensor& table,
    bool first, int64_t evals) {
  const auto rows = block<T>(table);
  measure<T>(z, f, residual, rows, first);
  return evals ? judge(rows, evals) : int64_t(CLOSER);
}

// One leaf of the state: writes f - z, and its length and that of f for the leaves so far. With the
// number of evaluations, after the last leaf, says what has happened; if that is no event, it keeps
// the best ratios and notes who has arrived.
int64_t look(
    Tensor z, Tensor f, std::optional<Tensor> residual, Tensor table, bool first, int64_t evals) {
  const auto dtype = table.scalar_type();
  const int64_t samples = table.size(1);
  if (!regular(z, dtype, samples) || !regular(f, dtype, samples) || f.size(1) != z.size(1) ||
      (residual && !regular(*residual, dtype, samples))) {
    return UNSUPPORTED;
  }
  return dtype == ScalarType::Float ? look_at<float>(z, f, residual, table, first, evals)
                                    : look_at<double>(z, f, residual, table, first, evals);
}

// --- samples that arrive --------------------------------------------------------------------------

constexpr int FORMS = 9;  // products of the last differences, in the order of solve/estimate.py

template <typename T>
INLINE void forms(const T* const* points, int64_t entries, double* out) {
  const T *z0 = points[0], *f0 = points[1], *z1 = points[2], *f1 = points[3];
  const T *z2 = points[4], *f2 = points[5];
  double p0 = 0, p1 = 0, p2 = 0, p3 = 0, p4 = 0, p5 = 0, p6 = 0, p7 = 0, p8 = 0;
#pragma omp simd reduction(+ : p0, p1, p2, p3, p4, p5, p6, p7, p8)
  for (int64_t i = 0; i < entries; ++i) {
    const double a = double(z0[i]), b = double(z1[i]), c = double(z2[i]);
    const double move = b - a, later_move = c - b;
    const double gap = double(f0[i]) - a, later_gap = double(f1[i]) - b, last = double(f2[i]) - c;
    const double change = later_gap - gap, later_change = last - later_gap;
    p0 += move * move;
    p1 += move * later_move;
    p2 += later_move * later_move;
    p3 += change * change;
    p4 += change * later_change;
    p5 += later_change * later_change;
    p6 += change * last;
    p7 += later_change * last;
    p8 += last * last;
  }
  const double all[FORMS] = {p0, p1, p2, p3, p4, p5, p6, p7, p8};
  for (int i = 0; i < FORMS; ++i) out[i] += all[i];
}

CLONES void add_forms(const float* const* points, int64_t n, double* out) { forms(points, n, out); }
CLONES void add_forms(const double* const* points, int64_t n, double* out) { forms(points, n, out); }

template <typename T>
void arrive_leaf(
    const Tensor* const* points, const Tensor& answers, const Tensor& table,
    const Block<double>& products, bool first_leaf) {
  Block<T> rows[6];
  for (int i = 0; i < 6; ++i) rows[i] = block<T>(*points[i]);
  const auto from = rows[4], to = block<T>(answers);
  const T* arrived = block<T>(table).at(ARRIVED);
  each_sample(from.samples, 6 * from.entries, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      if (!(arrived[s] > 0)) continue;
      std::copy_n(from.at(s), from.entries, to.at(s));
      const T* row[6];
      for (int i = 0; i < 6; ++i) row[i] = rows[i].at(s);
      if (first_leaf) std::fill_n(products.at(s), FORMS, 0.0);
      add_forms(row, from.entries, products.at(s));
    }
  });
}

// One leaf: keeps the answers of the samples that arrive, rows of z2, and the products of their last
// differences, which are added up over the leaves so far.
bool arrive(
    Tensor z0, Tensor f0, Tensor z1, Tensor f1, Tensor z2, Tensor f2, Tensor answers, Tensor table,
    Tensor products, bool first) {
  const Tensor* points[6] = {&z0, &f0, &z1, &f1, &z2, &f2};
  const auto dtype = table.scalar_type();
  const int64_t samples = table.size(1);
  for (const Tensor* x : points) {
    if (!regular(*x, dtype, samples)) return false;
  }
  if (dtype == ScalarType::Float) {
    arrive_leaf<float>(points, answers, table, block<double>(products), first);
  } else {
    arrive_leaf<double>(points, answers, table, block<double>(products), first);
  }
  return true;
}

template <typename T>
void restore_leaf(const Tensor& x, const Tensor& answers, const Tensor& table, const Tensor& out) {
  const auto from = block<T>(x), answer = block<T>(answers), to = block<T>(out);
  const T* ended = block<T>(table).at(ENDED);
  for (int64_t s = 0; s < from.samples; ++s) {
    const T* row = ended[s] > 0 ? answer.at(s) : from.at(s);
    if (row != to.at(s)) std::copy_n(row, from.entries, to.at(s));
  }
}

// One leaf: x with the answers of the samples that have arrived, in `out`, which may be x.
bool restore(Tensor x, Tensor answers, Tensor table, Tensor out) {
  const auto dtype = table.scalar_type();
  const int64_t samples = table.size(1);
  if (!regular(x, dtype, samples) || !regular(out, dtype, samples)) return false;
  if (dtype == ScalarType::Float) {
    restore_leaf<float>(x, answers, table, out);
  } else {
    restore_leaf<double>(x, answers, table, out);
  }
  return true;
}

// --- Anderson acceleration ------------------------------------------------------------------------

constexpr int64_t ROOM = 2;  // the newest residual and the one before it, before the differences

template <typename T>
INLINE void difference(const T* a, const T* b, T* out, int64_t entries) {
#pragma omp simd
  for (int64_t i = 0; i < entries; ++i) out[i] = a[i] - b[i];
}

CLONES void subtract(const float* a, const float* b, float* out, int64_t n) {
  difference(a, b, out, n);
}

CLONES void subtract(const double* a, const double* b, double* out, int64_t n) {
  difference(a, b, out, n);
}

template <typename T>
INLINE double product(const T* a, const T* b, int64_t entries) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < entries; ++i) sum += double(a[i]) * double(b[i]);
  return sum;
}

CLONES double dot(const float* a, const float* b, int64_t n) { return product(a, b, n); }
CLONES double dot(const double* a, const double* b, int64_t n) { return product(a, b, n); }

// f less the combination of `count` rows, which is summed up before it is rounded: rounded one by
// one to the digits of f, the terms would keep a solve from its last digits.
template <typename T>
INLINE void combination(
    const T* f, const T* row, int64_t slot, const double* weights, int64_t count, T* out,
    int64_t entries) {
  constexpr int64_t CHUNK = 256;
  double sum[CHUNK];
  for (int64_t start = 0; start < entries; start += CHUNK) {
    const int64_t n = std::min(CHUNK, entries - start);
    for (int64_t i = 0; i < n; ++i) sum[i] = 0;
    for (int64_t j = 0; j < count; ++j) {
      const T* move = row + j * slot + start;
      const double weight = weights[j];
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) sum[i] += weight * double(move[i]);
    }
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[start + i] = T(double(f[start + i]) - sum[i]);
  }
}

CLONES void combine(
    const float* f, const float* row, int64_t slot, const double* weights, int64_t count,
    float* out, int64_t n) {
  combination(f, row, slot, weights, count, out, n);
}

CLONES void combine(
    const double* f, const double* row, int64_t slot, const double* weights, int64_t count,
    double* out, int64_t n) {
  combination(f, row, slot, weights, count, out, n);
}

template <typename T>
void store_leaf(
    const Tensor& f, const Tensor& base, const Tensor& residuals, const Tensor& moves,
    int64_t newest, int64_t slot) {
  const auto image = block<T>(f), before = block<T>(base);
  const auto gap = block<T>(residuals), move = block<T>(moves);
  each_sample(image.samples, 2 * image.entries, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) {
      subtract(gap.at(s, newest), gap.at(s, 1 - newest), gap.at(s, ROOM + slot), image.entries);
      subtract(image.at(s), before.at(s), move.at(s, slot), image.entries);
    }
  });
}

// One leaf: the newest differences of residuals and of images, into a slot of either history.
bool store(
    Tensor f, Tensor base, Tensor residuals, Tensor moves, int64_t newest, int64_t slot) {
  const auto dtype = residuals.scalar_type();
  const int64_t samples = residuals.size(0);
  if (!regular(f, dtype, samples) || !regular(base, dtype, samples)) return false;
  if (dtype == ScalarType::Float) {
    store_leaf<float>(f, base, residuals, moves, newest, slot);
  } else {
    store_leaf<double>(f, base, residuals, moves, newest, slot);
  }
  return true;
}

// Solves gram x = right in place of `right` by Cholesky's method; false if a pivot is not positive.
// `factor` has room for count^2 numbers.
bool solve(const double* gram, int64_t stride, int64_t count, double* right, double* factor) {
  for (int64_t i = 0; i < count; ++i) {
    double* row = factor + i * count;
    for (int64_t j = 0; j <= i; ++j) {
      const double* other = factor + j * count;
      double sum = gram[i * stride + j];
      for (int64_t k = 0; k < j; ++k) sum -= row[k] * other[k];
      if (j < i) {
        row[j] = sum / other[j];
      } else if (sum > 0 && std::isfinite(sum)) {
        row[i] = std::sqrt(sum);
      } else {
        return false;
      }
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < i; ++k) right[i] -= factor[i * count + k] * right[k];
    right[i] /= factor[i * count + i];
  }
  for (int64_t i = count - 1; i >= 0; --i) {
    for (int64_t k = i + 1; k < count; ++k) right[i] -= factor[k * count + i] * right[k];
    right[i] /= factor[i * count + i];
  }
  return true;
}

template <typename T>
void extrapolate_all(
    const Tensors& f, const Tensors& residuals, const Tensors& moves, const Tensor& gram,
    const std::vector<int64_t>& waiting, int64_t newest, int64_t stored, double scale,
    const bool* where, const Tensors& out) {
  const auto image = blocks<T>(f), gaps = blocks<T>(residuals), steps = blocks<T>(moves);
  const auto result = blocks<T>(out);
  const auto matrix = block<double>(gram);
  const int64_t cost = entries_of(image) * stored * int64_t(waiting.size() + 2);
  each_sample(image[0].samples, cost, [&](int64_t first, int64_t last) {
    std::vector<double> right(stored), factor(stored * stored);
    for (int64_t s = first; s < last; ++s) {
      double* g = matrix.at(s);
      const auto multiply = [&](int64_t a, int64_t b) {
        double sum = 0;
        for (const auto& gap : gaps) sum += dot(gap.at(s, a), gap.at(s, b), gap.entries);
        return sum;
      };
      for (const int64_t slot : waiting) {
        for (int64_t j = 0; j < stored; ++j) {
          const double value = multiply(ROOM + slot, ROOM + j);
          g[slot * matrix.slot + j] = g[j * matrix.slot + slot] = value;
        }
        g[slot * matrix.slot + slot] *= scale;
      }
      int64_t count = where && !where[s] ? 0 : stored;
      for (int64_t j = 0; j < count; ++j) right[j] = multiply(newest, ROOM + j);
      if (count && !solve(g, matrix.slot, count, right.data(), factor.data())) count = 0;
      for (size_t leaf = 0; leaf < image.size(); ++leaf) {
        const auto& move = steps[leaf];
        combine(
            image[leaf].at(s), move.at(s), move.slot, right.data(), count, result[leaf].at(s),
            move.entries);
      }
    }
  });
}

// The accelerated step, for the samples `where`, else f: fills the rows of the Gram matrix that are
// waiting, solves the normal equations and writes f less the combination of the moves to `out`.
bool extrapolate(
    Tensors f, Tensors residuals, Tensors moves, Tensor gram, std::vector<int64_t> waiting,
    int64_t newest, int64_t stored, double scale, std::optional<Tensor> where, Tensors out) {
  const auto dtype = residuals[0].scalar_type();
  const int64_t samples = residuals[0].size(0);
  if (!regular(f, dtype, samples) || !regular(out, dtype, samples)) return false;
  const bool* mask = where ? static_cast<const bool*>(where->const_data_ptr()) : nullptr;
  if (dtype == ScalarType::Float) {
    extrapolate_all<float>(
        f, residuals, moves, gram, waiting, newest, stored, scale, mask, out);
  } else {
    extrapolate_all<double>(
        f, residuals, moves, gram, waiting, newest, stored, scale, mask, out);
  }
  return true;
}

}  // namespace

STABLE_TORCH_LIBRARY(equilibria, m) {
  m.def(
      "look(Tensor z, Tensor f, Tensor(a!)? residual, Tensor(b!) table, bool first, int evals) -> "
      "int");
  m.def(
      "arrive(Tensor z0, Tensor f0, Tensor z1, Tensor f1, Tensor z2, Tensor f2, "
      "Tensor(a!) answers, Tensor table, Tensor(b!) products, bool first) -> bool");
  m.def("restore(Tensor x, Tensor answers, Tensor table, Tensor(a!) out) -> bool");
  m.def(
      "store(Tensor f, Tensor base, Tensor(a!) residuals, Tensor(b!) moves, int newest, int slot) "
      "-> bool");
  m.def(
      "extrapolate(Tensor[] f, Tensor[] residuals, Tensor[] moves, Tensor(a!) gram, int[] waiting, "
      "int newest, int stored, float scale, Tensor? where, Tensor(b!)[] out) -> bool");
}

STABLE_TORCH_LIBRARY_IMPL(equilibria, CPU, m) {
  m.impl("look", TORCH_BOX(&look));
  m.impl("restore", TORCH_BOX(&restore));
  m.impl("arrive", TORCH_BOX(&arrive));
  m.impl("store", TORCH_BOX(&store));
  m.impl("extrapolate", TORCH_BOX(&extrapolate));
}
