/** HW: follows points of a heart's wall through the frames of an ultrasound film. */
#include "bench/memory.hpp"
#include "bench/micro/workload.hpp"

namespace gdev_bench {
namespace {

constexpr unsigned side = 640;  // of a frame
constexpr unsigned points = 51;
constexpr int reach = 15;     // a point's neighbourhood: 31 x 31 pixels around it
constexpr int farthest = 20;  // how far a point is searched for, from where it was
constexpr int width = 2 * farthest + 1;
constexpr unsigned threads = 256;

/**
 * Moves each point to where its neighbourhood is most like that of the first frame: the least sum
 * of squared differences. A block searches for one point; a thread tries some of the places.
 */
__global__ void track(const std::uint8_t* first, const int2* origins, const std::uint8_t* frame,
                      int2* places) {
  __shared__ unsigned long long best;
  const int2 origin = origins[blockIdx.x];
  const int2 place = places[blockIdx.x];
  if (threadIdx.x == 0) {
    best = ~0ULL;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < width * width; i += threads) {
    const int x = place.x + i % width - farthest;
    const int y = place.y + i / width - farthest;
    if (x < reach || y < reach || x + reach >= int{side} || y + reach >= int{side}) {
      continue;
    }
    unsigned difference = 0;
    for (int dy = -reach; dy <= reach; ++dy) {
      for (int dx = -reach; dx <= reach; ++dx) {
        const int one = int{first[(origin.y + dy) * int{side} + origin.x + dx]} -
                        int{frame[(y + dy) * int{side} + x + dx]};
        difference += static_cast<unsigned>(one * one);
      }
    }
    // The difference above the place: the least word is that of the first of the best places.
    atomicMin(&best, static_cast<unsigned long long>(difference) << 32 | static_cast<unsigned>(i));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int found = static_cast<int>(best & 0xffffffff);
    places[blockIdx.x] = {place.x + found % width - farthest, place.y + found / width - farthest};
  }
}

/** A film whose picture moves by a known way, with noise. So it is known where the points are. */
class heart_wall : public workload {
 public:
  explicit heart_wall(std::size_t frames) : frames_(frames), result_(frames * points) {
    random_numbers random(1);
    std::vector<std::uint8_t> picture(std::size_t{side} * side);
    for (std::uint8_t& one : picture) one = static_cast<std::uint8_t>(16 + random.below(224));
    int2 moved = {0, 0};
    for (std::vector<std::uint8_t>& frame : frames_) {
      way_.push_back(moved);
      frame.resize(picture.size());
      for (unsigned y = 0; y < side; ++y) {
        for (unsigned x = 0; x < side; ++x) {
          const unsigned from_y = (y + side - static_cast<unsigned>(moved.y)) % side;
          const unsigned from_x = (x + side - static_cast<unsigned>(moved.x)) % side;
          frame[y * side + x] =
              static_cast<std::uint8_t>(picture[from_y * side + from_x] + random.below(16));
        }
      }
      moved = {next_place(random, moved.x), next_place(random, moved.y)};
    }
    const unsigned margin = farthest + reach + most_moved;
    for (unsigned i = 0; i < points; ++i) {
      origins_.push_back({static_cast<int>(margin + random.below(side - 2 * margin)),
                          static_cast<int>(margin + random.below(side - 2 * margin))});
    }
  }

  void run() override {
    const device_array<int2> origins(origins_);
    const device_array<int2> places(origins_);
    const device_array<std::uint8_t> first(frames_.front());
    device_array<std::uint8_t> frame(frames_.front().size());
    for (std::size_t i = 0; i < frames_.size(); ++i) {
      frame.copy_from(frames_[i].data());
      track<<<points, threads>>>(first.data(), origins.data(), frame.data(), places.data());
      check_launch();
      places.copy_to(&result_[i * points], points);
    }
  }
  void forget() override { std::fill(result_.begin(), result_.end(), int2{-1, -1}); }
  [[nodiscard]] bool is_right() const override {
    for (std::size_t i = 0; i < result_.size(); ++i) {
      const int2 origin = origins_[i % points];
      const int2 moved = way_[i / points];
      if (result_[i].x != origin.x + moved.x || result_[i].y != origin.y + moved.y) return false;
    }
    return true;
  }
  [[nodiscard]] std::size_t bytes() const override {
    return (frames_.size() + 1) * frames_.front().size() +
           (result_.size() + 2 * points) * sizeof(int2);
  }

 private:
  static constexpr int most_moved = 60;

  /** Returns where the picture is in the next frame: at most 10 pixels away. */
  static int next_place(random_numbers& random, int now) {
    return std::clamp(now + static_cast<int>(random.below(21)) - 10, 0, most_moved);
  }

  std::vector<std::vector<std::uint8_t>> frames_;
  std::vector<int2> way_, origins_, result_;
};

}  // namespace

std::unique_ptr<workload> make_heart_wall(std::size_t frames) {
  return std::make_unique<heart_wall>(frames);
}

}  // namespace gdev_bench
