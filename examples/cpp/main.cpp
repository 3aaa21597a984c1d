// Inspects one image with an exported detector, through ONNX Runtime's C++ API.
//
//   inspect part.onnx image.ppm [threshold]
//
// The image is a binary PPM (P6, 8 bits) of the size given by the metadata "height" and "width" of the model file. Your
// own program can pass RGB bytes from the camera instead. Prints score, threshold, verdict and the sum of the map, then a
// line for each region: its box (left, top, right, bottom), area and peak, in pixels of the map.

#include <onnxruntime_cxx_api.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "regions.hpp"

namespace {

struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // (height, width, 3), RGB, row by row
};

Image read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string kind;
  int largest = 0;
  Image image;
  if (!(file >> kind >> image.width >> image.height >> largest) || kind != "P6" || largest != 255) {
    throw std::runtime_error(path + " is not an 8-bit binary PPM; convert it first");
  }
  file.get();  // the byte that ends the header
  image.pixels.resize(static_cast<size_t>(3 * image.height * image.width));
  if (!file.read(reinterpret_cast<char*>(image.pixels.data()), static_cast<std::streamsize>(image.pixels.size()))) {
    throw std::runtime_error(path + " is truncated");
  }
  return image;
}

std::string text(const Ort::ModelMetadata& about, const char* key) {
  Ort::AllocatorWithDefaultOptions allocator;
  const auto found = about.LookupCustomMetadataMapAllocated(key, allocator);
  if (!found) throw std::runtime_error(std::string("the file is not an exported detector: its metadata lack ") + key);
  return found.get();
}

int run(int count, char** arguments) {
  Ort::Env environment(ORT_LOGGING_LEVEL_ERROR, "inspect");
  Ort::SessionOptions options;
  Ort::Session session(environment, arguments[1], options);
  const Ort::ModelMetadata about = session.GetModelMetadata();

  const Image image = read_ppm(arguments[2]);
  if (std::to_string(image.height) != text(about, "height") || std::to_string(image.width) != text(about, "width")) {
    throw std::runtime_error("the detector requires images of " + text(about, "width") + " x " + text(about, "height"));
  }
  const bool overridden = count > 3;
  const double limit = std::strtod(overridden ? arguments[3] : text(about, "threshold").c_str(), nullptr);
  const std::string outline = text(about, "outline");
  const double bound = outline.empty() ? limit : std::strtod(outline.c_str(), nullptr);
  const double share = std::strtod(text(about, "outline_share").c_str(), nullptr);  // 0 if there is none
  float threshold = patchsvdd::round_down(limit);

  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const std::array<int64_t, 4> shape{1, image.height, image.width, 3};
  std::vector<Ort::Value> given;
  given.push_back(Ort::Value::CreateTensor<uint8_t>(memory, const_cast<uint8_t*>(image.pixels.data()),
                                                    image.pixels.size(), shape.data(), shape.size()));
  if (overridden) given.push_back(Ort::Value::CreateTensor<float>(memory, &threshold, 1, nullptr, 0));

  const std::array<const char*, 2> inputs{"images", "threshold"};  // without the second: the file's threshold
  const std::array<const char*, 3> outputs{"map", "score", "is_anomalous"};
  const auto found =
      session.Run(Ort::RunOptions{nullptr}, inputs.data(), given.data(), given.size(), outputs.data(), outputs.size());

  double sum = 0;
  const float* map = found[0].GetTensorData<float>();
  for (int64_t pixel = 0; pixel < image.height * image.width; ++pixel) sum += map[pixel];
  std::printf("%.9g %.9g %s %.9g\n", found[1].GetTensorData<float>()[0], threshold,
              found[2].GetTensorData<bool>()[0] ? "anomalous" : "good", sum);
  for (const auto& region : patchsvdd::find_regions(map, image.height, image.width, limit, bound, share)) {
    std::printf("%lld %lld %lld %lld %lld %.9g\n", static_cast<long long>(region.left),
                static_cast<long long>(region.top), static_cast<long long>(region.right),
                static_cast<long long>(region.bottom), static_cast<long long>(region.area), region.peak);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s part.onnx image.ppm [threshold]\n", arguments[0]);
    return 2;
  }
  try {
    return run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
