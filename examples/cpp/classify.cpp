// Reads a compiled digit classifier's input from a file of raw floats and prints the digits, in C++.
//
//   tensorc compile examples/digits/digits.onnx -o digits --shape batch=1..4 --emit=static-lib
//   c++ -std=c++17 -O2 -I. examples/cpp/classify.cpp digits.a -lm -lpthread -o classify
//   ./classify digits.weights images.f32
//
// Weights, threads and context are owned by objects; errors are exceptions with the model's own words.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "digits.h"

namespace {

constexpr std::size_t pixels = 64, classes = 10;

class Weights {
 public:
  explicit Weights(const char *path) {
    if (tc_status status = digits_weights_open(path, 0, &raw_); status != TC_OK)
      throw std::runtime_error(std::string(path) + ": " + tc_rt_status_text(status));
  }
  ~Weights() { digits_weights_close(&raw_); }
  Weights(const Weights &) = delete;
  Weights &operator=(const Weights &) = delete;
  const tc_weights *get() const { return &raw_; }

 private:
  tc_weights raw_{};
};

class Threads {
 public:
  explicit Threads(unsigned workers) {
    if (tc_status status = tc_rt_threads_start(workers, &raw_); status != TC_OK)
      throw std::runtime_error(tc_rt_status_text(status));
  }
  ~Threads() { tc_rt_threads_stop(&raw_); }
  Threads(const Threads &) = delete;
  Threads &operator=(const Threads &) = delete;
  const tc_parallel *get() const { return &raw_; }

 private:
  tc_parallel raw_{};
};

// A run at a time; weights and threads outlive it.
class Classifier {
 public:
  Classifier(const Weights &weights, const Threads &threads) {
    digits_context *raw = nullptr;
    if (tc_status status = digits_init(&raw, nullptr, 0, weights.get(), threads.get()); status != TC_OK)
      throw std::runtime_error(tc_rt_status_text(status));
    context_.reset(raw);
  }

  // The digit of each image, and how probable every digit is.
  std::pair<std::vector<std::int64_t>, std::vector<float>> operator()(std::vector<float> &images) {
    const std::int64_t batch = static_cast<std::int64_t>(images.size() / pixels);
    const std::array<std::int64_t, 4> dims{batch, 1, 8, 8};
    std::vector<std::int64_t> digit(static_cast<std::size_t>(batch));
    std::vector<float> probabilities(digit.size() * classes);
    const tc_tensor input{images.data(), dims.data(), 4, TC_F32, images.size() * sizeof(float)};
    std::array<tc_tensor, DIGITS_OUTPUTS> outputs{{
        {digit.data(), nullptr, 0, 0, digit.size() * sizeof(std::int64_t)},
        {probabilities.data(), nullptr, 0, 0, probabilities.size() * sizeof(float)},
    }};
    if (digits_run(context_.get(), &input, outputs.data()) != TC_OK)
      throw std::runtime_error(digits_error(context_.get()));
    return {std::move(digit), std::move(probabilities)};
  }

 private:
  struct Free {
    void operator()(digits_context *context) const { digits_free(context); }
  };
  std::unique_ptr<digits_context, Free> context_;
};

std::vector<float> read(const char *path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<float> images(bytes.size() / (pixels * sizeof(float)) * pixels);
  if (images.empty()) throw std::runtime_error(std::string(path) + ": no images");
  std::memcpy(images.data(), bytes.data(), images.size() * sizeof(float));
  return images;
}

}  // namespace

int main(int argc, char **argv) try {
  if (argc != 3) throw std::runtime_error("usage: classify digits.weights images.f32");
  const Weights weights(argv[1]);
  const Threads threads(2);
  Classifier classify(weights, threads);
  std::vector<float> images = read(argv[2]);
  const auto [digit, probabilities] = classify(images);
  for (std::size_t i = 0; i < digit.size(); i++) {
    std::uint32_t bits;
    std::memcpy(&bits, &probabilities[i * classes + static_cast<std::size_t>(digit[i])], sizeof bits);
    std::printf("%d %08x\n", static_cast<int>(digit[i]), static_cast<unsigned>(bits));
  }
  // The model was not compiled for so many images: an error that says so.
  images.resize(5 * pixels);
  try {
    classify(images);
  } catch (const std::runtime_error &error) {
    std::printf("%s\n", error.what());
  }
  return 0;
} catch (const std::exception &error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
