#include "testing/simulation/simulation.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "core/control/trainer_rank.h"
#include "core/control/worker_rank.h"
#include "core/fabric/loopback/loopback.h"
#include "core/protocol/coordinator.h"
#include "testing/faulty_fabric/faulty_fabric.h"

namespace waybill::simulation {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kColumns = 12;
constexpr absl::Duration kFaultyTime = absl::Seconds(12);
constexpr absl::Duration kLatest = absl::Minutes(10);  // The job has recovered long before.
// A call ends by its deadline plus this.
constexpr absl::Duration kMargin = absl::Seconds(1);
constexpr int kMostAttempts = 4;  // To publish, once faults have ended.
constexpr std::byte kGarbage{0xEE};

uint16_t ValueOf(int64_t element, uint64_t version) {
  return static_cast<uint16_t>(version * 1009 + static_cast<uint64_t>(element) * 31);
}

Manifest OneShard(const Box& box) {
  Manifest m;
  m.AddRegion("w", static_cast<uint64_t>(box.element_count()) * 2);
  m.AddShard(m.AddTensor("w", {kRows, kColumns}, Dtype::kBf16), {Dtype::kBf16}, box,
             {0, 0, {box.extent(1), 1}});
  return m;
}

std::vector<std::byte> BytesOf(const Box& box, uint64_t version) {
  std::vector<std::byte> bytes;
  for (int64_t r = box.begin(0); r < box.end(0); ++r) {
    for (int64_t c = box.begin(1); c < box.end(1); ++c) {
      const uint16_t value = ValueOf(r * kColumns + c, version);
      bytes.push_back(static_cast<std::byte>(value & 0xFF));
      bytes.push_back(static_cast<std::byte>(value >> 8));
    }
  }
  return bytes;
}

struct Group {
  std::string name;
  uint32_t first = 0;  // Workers [first, first + size).
  uint32_t size = 0;
};

// What a seed draws besides the faults.
struct Job {
  uint32_t trainers = 1;
  uint32_t replicas = 1;  // Trainers t and t + trainers / replicas hold the same.
  std::vector<Group> groups;
  uint32_t workers = 0;
  Mode mode = Mode::kShadow;
  bool can_map = false;
  bool asked = false;  // Users answer the notices of updates.

  const Group& GroupOf(uint32_t worker) const {
    for (const Group& group : groups) {
      if (worker < group.first + group.size) return group;
    }
    return groups.back();
  }
  Box TrainerBox(uint32_t t) const {
    const int64_t parts = trainers / replicas, part = t % parts;
    return Box({kRows * part / parts, 0}, {kRows * (part + 1) / parts, kColumns});
  }
  Box WorkerBox(uint32_t w) const {
    const Group& group = GroupOf(w);
    const int64_t part = w - group.first, parts = group.size;
    return Box({0, kColumns * part / parts}, {kRows, kColumns * (part + 1) / parts});
  }
};

class World;

// A process that is, or was, a rank.
class Process final : public RankActions {
 public:
  Process(World* world, RankId id, uint64_t incarnation);
  ~Process() override;

  void Begin();
  void Step(absl::Time now);
  absl::Time next_deadline() const;
  void OnStreamOpen();
  void OnStreamEnd();
  void OnMessage(const proto::ControllerMessage& message);

  bool is_trainer() const { return id.role == Role::kTrainer; }
  std::string name() const;

  // A trainer's user.
  void Publish(uint64_t version, absl::Duration timeout);
  void CancelPublish();
  // A worker's user.
  void TakeSnapshot(absl::Duration time);
  void CheckShown(absl::string_view when);
  void Leave();

  // RankActions.
  void OpenStream() override;
  void CloseStream() override;
  void Send(proto::RankMessage message) override;
  void Tell(Notice notice) override { notices.push_back(std::move(notice)); }

  void HandleNotices();
  void HandleNotice(const Notice& notice);
  void HandleUpdateNotice(const Notice& notice);
  void GiveAnswers();

  World& world;
  const RankId id;
  const uint64_t incarnation;
  FaultyFabric* fabric = nullptr;  // Owned below.
  std::unique_ptr<FaultyFabric> owned_fabric;
  std::vector<std::byte> memory;  // A trainer's tensors, or the engine's memory.
  std::unique_ptr<TrainerRank> trainer;
  std::unique_ptr<WorkerRank> worker;
  std::deque<Notice> notices;

  uint64_t stream = 0;  // 0: none.
  bool joined = false;
  bool ended = false;
  bool left = false;
  bool replaced = false;      // Another process may have its place.
  bool was_replaced = false;  // At any time.
  size_t born = 0;            // How many decisions there were when it joined.
  absl::Time stopped_until = absl::InfinitePast();
  bool interrupted = false;  // It was stopped amid a step, which goes on before it hears anything.
  // Calls that have to end: by token, until when.
  std::map<uint64_t, absl::Time> due;
  uint64_t last_token = 0;

  uint64_t publishing = 0;  // The version whose call has not ended.
  uint64_t publish_token = 0;
  uint64_t done = 0;    // The last version whose call has ended.
  bool failed = false;  // And how.

  struct Pending {
    Notice notice;
    absl::Time at;
  };
  std::vector<Pending> pending_answers;
  enum class Mood { kAccept, kRefuse, kVeto, kSilent };
  Mood mood = Mood::kAccept;  // For the next update.
  uint64_t last_shown = 0;
  std::optional<Snapshot> snapshot;
  absl::Time snapshot_until;
};

struct Stream {
  Process* process = nullptr;  // Null once it does not listen any more.
  bool to_controller_open = true;
  bool to_rank_open = true;
  bool opened = false;  // OnStreamOpen() was called.
  std::deque<proto::RankMessage> to_controller;
  std::deque<proto::ControllerMessage> to_rank;
  absl::Time held_until = absl::InfinitePast();
  bool controller_closed = false;  // Ends for the rank once its messages are delivered.
};

class World final : public CoordinatorActions {
 public:
  World(uint64_t seed, const std::vector<Fault>& faults, Story story)
      : random_(seed), faults_(faults), told_(story) {
    DrawJob();
  }
  ~World() override {
    zombies_.clear();
    ranks_.clear();
  }

  Result Run();

  void Violate(const std::string& what) {
    if (result_.violation.empty()) {
      result_.violation = what;
      Note("VIOLATION: ", what);
    }
  }
  template <typename... Words>
  void Note(Words... words) {
    if (told_ == Story::kNotTold) return;
    result_.story.push_back(absl::StrFormat("%9.3f s  %s", absl::ToDoubleSeconds(now_ - kStart),
                                            absl::StrCat(words...)));
  }

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  absl::Duration UpTo(absl::Duration most) {
    return absl::Microseconds(
        static_cast<int64_t>(Below(static_cast<uint64_t>(absl::ToInt64Microseconds(most)) + 1)));
  }
  absl::Time now() const { return now_; }
  const Job& job() const { return job_; }
  LoopbackNetwork& network() { return *network_; }

  uint64_t OpenStream(Process* process) {
    const uint64_t id = ++last_stream_;
    streams_[id].process = process;
    active_ = true;
    return id;
  }
  Stream* Find(uint64_t stream) {
    const auto found = streams_.find(stream);
    return found == streams_.end() ? nullptr : &found->second;
  }
  void Active() { active_ = true; }
  size_t decision_count() const { return decisions_.size(); }
  // Returns true if a process whose place `process` took is alive.
  bool HasRival(const Process& process) const {
    return std::any_of(zombies_.begin(), zombies_.end(), [&](const auto& zombie) {
      return zombie != nullptr && zombie->id == process.id && !zombie->ended && !zombie->left;
    });
  }

  // What the users have been told.
  void OnOutcome(uint64_t version, const std::string& group, bool committed) {
    (committed ? told_committed_ : told_failed_)[group].insert(version);
    if (committed && told_failed_[group].contains(version)) {
      Violate(absl::StrCat("truthful: version ", version, " of group ", group,
                           " was reported as failed and as committed"));
    }
    if (!committed && shown_[group].contains(version)) {
      Violate(absl::StrCat("truthful: version ", version, " of group ", group,
                           " is reported as failed, and was shown"));
    }
  }
  void OnShown(const Process& process, uint64_t before, uint64_t version) {
    const Group& group = job_.GroupOf(process.id.rank);
    shown_[group.name].insert(version);
    if (told_failed_[group.name].contains(version)) {
      Violate(absl::StrCat("truthful: ", process.name(), " shows version ", version,
                           ", which was reported as failed"));
    }
    // Nothing that was decided while it was a member is left out.
    for (size_t i = process.born; i < decisions_.size() && !process.was_replaced; ++i) {
      const Decision& d = decisions_[i];
      if (d.group == group.name && d.version > before && d.version < version) {
        Violate(absl::StrCat("truthful: ", process.name(), " shows version ", version,
                             " and never showed version ", d.version, ", which is committed"));
      }
    }
    const bool recorded = std::any_of(decisions_.begin(), decisions_.end(), [&](const Decision& d) {
      return d.group == group.name && d.version == version;
    });
    if (!recorded) {
      Violate(absl::StrCat("together: ", process.name(), " shows version ", version,
                           ", and no decision is recorded"));
    }
  }

  // CoordinatorActions.
  void Send(ConnectionId connection, proto::ControllerMessage message) override {
    Stream* stream = Find(connection);
    if (stream == nullptr || !stream->to_rank_open || stream->controller_closed) return;
    stream->to_rank.push_back(std::move(message));
    active_ = true;
  }
  void Close(ConnectionId connection) override {
    if (Stream* stream = Find(connection)) stream->controller_closed = true;
    active_ = true;
  }
  void Compute(Work work) override {
    work_.push_back({now_ + UpTo(absl::Milliseconds(20)), std::move(work)});
  }
  void Record(uint64_t ticket, const Decision& decision) override {
    records_.push_back({now_ + UpTo(absl::Milliseconds(20)), ticket, decision});
  }

 private:
  static constexpr absl::Time kStart = absl::FromUnixSeconds(1'000'000);
  struct Computation {
    absl::Time at;
    Work work;
  };
  struct RecordInFlight {
    absl::Time at;
    uint64_t ticket;
    Decision decision;
  };

  void DrawJob();
  std::unique_ptr<Process> MakeProcess(RankId id);
  std::unique_ptr<Process>& ProcessOf(uint32_t index) { return ranks_[index % ranks_.size()]; }
  void StartController();
  void CrashController();
  void RunJobs();
  void EndRecord(const RecordInFlight& record);
  void DeliverSome();
  bool Deliver(uint64_t id, Stream& stream);
  void OnDelivered(const Process& process, Trigger trigger);
  void EndForRank(uint64_t id, Stream& stream);
  void BreakStream(uint64_t id);
  void StepRanks();
  void Strike(const Fault& fault);
  void Train();
  void EndOfFaults();
  void CheckAll();
  void Destroy(std::unique_ptr<Process>& process);
  void ReplaceRefused(size_t index);
  void CheckDue(Process& process);
  void CheckGrowth();
  absl::Time NextEvent();

  std::mt19937_64 random_;
  const std::vector<Fault> faults_;
  const Story told_;
  Result result_;
  Job job_;
  absl::Time now_ = kStart;
  bool active_ = false;
  std::unique_ptr<LoopbackNetwork> network_;
  std::vector<std::unique_ptr<Process>> ranks_;    // Trainers, then workers; null: none at present.
  std::vector<absl::Time> restart_at_;             // Of those that are null.
  std::vector<std::unique_ptr<Process>> zombies_;  // Whose place another may have.
  std::unique_ptr<Coordinator> coordinator_;
  absl::Time controller_at_ = absl::InfiniteFuture();  // When the next one starts.
  std::map<uint64_t, Stream> streams_;
  uint64_t last_stream_ = 0;
  std::vector<Computation> work_;
  std::vector<RecordInFlight> records_;
  std::vector<Decision> decisions_;  // On disk.
  struct HeldPosts {
    absl::Time until;
    Process* process;
    std::string peer;
  };
  std::vector<HeldPosts> held_posts_;
  std::vector<Fault> armed_;      // Wait for their message.
  std::vector<Fault> triggered_;  // It has come.
  int fail_records_ = 0;
  uint64_t next_fault_ = 0;
  bool calm_ = false;  // Faults have ended.

  uint64_t version_ = 0;  // The training loop's.
  absl::Time next_version_at_ = kStart;
  int attempts_ = 0;  // Since faults ended.
  bool recovered_ = false;
  std::map<std::string, std::set<uint64_t>> told_committed_, told_failed_, shown_;
};

// --- a process ---

Process::Process(World* w, RankId who, uint64_t number) : world(*w), id(who), incarnation(number) {}
Process::~Process() {
  snapshot.reset();
  trainer.reset();
  worker.reset();
}

std::string Process::name() const {
  return absl::StrCat(ToString(id), incarnation > 1 ? absl::StrCat("#", incarnation) : "");
}

void Process::Begin() {
  owned_fabric = std::make_unique<FaultyFabric>(world.network().Join(name()));
  fabric = owned_fabric.get();
  const Job& job = world.job();
  SessionOptions options;
  options.id = id;
  options.job = "simulated";
  options.world = is_trainer() ? job.trainers : job.workers;
  options.incarnation = incarnation * 1000 + id.rank * 2 + (is_trainer() ? 0 : 1) + 1;
  if (is_trainer()) {
    Manifest manifest = OneShard(job.TrainerBox(id.rank));
    memory.assign(manifest.region_bytes(0), kGarbage);
    auto made = TrainerRank::Create(
        options, {.ring_bytes = 8 << 10, .chunk_bytes = 4 << 10, .stage_threads = 0},
        std::move(manifest), {{MemoryKind::kHost, memory.data(), memory.size()}}, fabric, this);
    if (!made.ok()) return world.Violate(absl::StrCat("create: ", made.status().ToString()));
    trainer = *std::move(made);
  } else {
    options.group = job.GroupOf(id.rank).name;
    Manifest manifest = OneShard(job.WorkerBox(id.rank));
    std::vector<MemorySpan> user_regions;
    if (job.mode != Mode::kShadow) {
      memory.assign(manifest.region_bytes(0), kGarbage);
      user_regions.push_back({MemoryKind::kHost, memory.data(), memory.size()});
    }
    std::set<Notice::Kind> asked;
    if (job.asked) {
      asked = {Notice::Kind::kPrepare, Notice::Kind::kArrived, Notice::Kind::kCommit};
    }
    auto made =
        WorkerRank::Create(options, {.mode = job.mode, .verify_threads = 0}, std::move(manifest),
                           user_regions, std::move(asked), fabric, this);
    if (!made.ok()) return world.Violate(absl::StrCat("create: ", made.status().ToString()));
    worker = *std::move(made);
  }
  const absl::Time deadline = world.now() + absl::Seconds(60);
  due[++last_token] = deadline;
  is_trainer() ? trainer->Join(last_token, deadline, world.now())
               : worker->Join(last_token, deadline, world.now());
}

void Process::Step(absl::Time now) {
  if (trainer) trainer->Step(now);
  if (worker) {
    worker->Step(now);
    if (worker->shown_version() != last_shown) {
      const uint64_t before = std::exchange(last_shown, worker->shown_version());
      world.OnShown(*this, before, last_shown);
    }
    if (!left) CheckShown("after a step");
    if (snapshot && now >= snapshot_until) {
      CheckShown("when a reader ends");
      world.Note(name(), ": the reader of version ", snapshot->version(), " ends");
      snapshot.reset();
    }
  }
  HandleNotices();
  GiveAnswers();
}

absl::Time Process::next_deadline() const {
  absl::Time next = trainer ? trainer->next_deadline() : worker->next_deadline();
  if (snapshot) next = std::min(next, snapshot_until);
  for (const Pending& pending : pending_answers) next = std::min(next, pending.at);
  return next;
}

void Process::OnStreamOpen() {
  trainer ? trainer->OnStreamOpen(world.now()) : worker->OnStreamOpen(world.now());
  HandleNotices();
}
void Process::OnStreamEnd() {
  stream = 0;
  const absl::Status why = absl::UnavailableError("the stream ended");
  trainer ? trainer->OnStreamEnd(why, world.now()) : worker->OnStreamEnd(why, world.now());
  HandleNotices();
}
void Process::OnMessage(const proto::ControllerMessage& message) {
  trainer ? trainer->OnMessage(message, world.now()) : worker->OnMessage(message, world.now());
  HandleNotices();
}

void Process::OpenStream() { stream = world.OpenStream(this); }
void Process::CloseStream() {
  if (Stream* open = world.Find(stream)) open->process = nullptr;
  stream = 0;
  world.Active();
}
void Process::Send(proto::RankMessage message) {
  Stream* open = world.Find(stream);
  if (open == nullptr || !open->to_controller_open) return;
  open->to_controller.push_back(std::move(message));
  world.Active();
}

void Process::Publish(uint64_t version, absl::Duration timeout) {
  const std::vector<std::byte> bytes = BytesOf(world.job().TrainerBox(id.rank), version);
  std::copy(bytes.begin(), bytes.end(), memory.begin());
  publishing = version;
  publish_token = ++last_token;
  const absl::Time deadline = world.now() + timeout;
  due[publish_token] = deadline;
  trainer->Publish(publish_token, {.version = version, .deadline = deadline}, world.now());
  HandleNotices();
}

void Process::CancelPublish() {
  if (!trainer || publishing == 0) return;
  trainer->Cancel(publish_token, world.now());
  HandleNotices();
}

void Process::TakeSnapshot(absl::Duration time) {
  if (!worker || snapshot) return;
  absl::StatusOr<Snapshot> taken = worker->TakeSnapshot("the simulation");
  if (!taken.ok()) return;
  snapshot = *std::move(taken);
  snapshot_until = world.now() + time;
}

// What is shown, and what a reader holds, is every byte of its version.
void Process::CheckShown(absl::string_view when) {
  const Box box = world.job().WorkerBox(id.rank);
  const auto check = [&](const Snapshot& held, absl::string_view what) {
    const std::vector<std::byte> expected = BytesOf(box, held.version());
    const auto bytes = held.region(0);
    if (!std::equal(bytes.begin(), bytes.end(), expected.begin(), expected.end())) {
      world.Violate(absl::StrCat("whole: ", name(), ": what ", what, " of version ", held.version(),
                                 " is not its bytes, ", when));
    }
  };
  if (snapshot) check(*snapshot, "a reader holds");
  const absl::StatusOr<Snapshot> shown = worker->TakeSnapshot("the check");
  if (shown.ok()) check(*shown, "is shown");
}

void Process::Leave() {
  if (left) return;
  snapshot.reset();
  due[++last_token] = world.now() + absl::Seconds(11);
  trainer ? trainer->Leave(last_token, world.now()) : worker->Leave(last_token, world.now());
  HandleNotices();
}

void Process::HandleNotices() {
  while (!notices.empty()) {
    const Notice notice = std::move(notices.front());
    notices.pop_front();
    HandleNotice(notice);
  }
}

void Process::HandleNotice(const Notice& notice) {
  if (notice.token != 0 && due.erase(notice.token) == 0) {
    world.Violate(absl::StrCat("bounded: ", name(), ": a call ended twice"));
  }
  switch (notice.kind) {
    case Notice::Kind::kJoined:
      world.Note(name(), " has joined: ", notice.status.ToString());
      joined = notice.status.ok();
      born = world.decision_count();
      ended = !joined;
      return;
    case Notice::Kind::kPublished:
      world.Note(name(), ": publish ", notice.version, ": ", notice.status.ToString());
      // The tensors may change from now on.
      if (fabric->held_data_posts() > 0) {
        world.Violate(absl::StrCat("quiet: ", name(), ": publish ", notice.version,
                                   " has ended, and writes of it are on their way"));
      }
      std::fill(memory.begin(), memory.end(), kGarbage);
      if (notice.version == publishing) publishing = 0;
      done = std::max(done, notice.version);
      failed = !notice.status.ok();
      return;
    case Notice::Kind::kLeft:
      left = true;
      if (worker) worker->CloseLanes();
      world.Note(name(), " has left");
      return;
    case Notice::Kind::kDisconnected:
      world.Note(name(), " has lost the controller");
      return;
    case Notice::Kind::kReconnected:
      world.Note(name(), " is back");
      return;
    case Notice::Kind::kEnded:
      world.Note(name(), " is dismissed: ", notice.status.ToString());
      ended = true;
      // A restarted controller takes whichever of two processes of one rank comes first.
      if (!replaced && !world.HasRival(*this)) {
        world.Violate(
            absl::StrCat("recovers: ", name(), " is dismissed: ", notice.status.ToString()));
      }
      return;
    case Notice::Kind::kOutcome:
      world.Note(name(), ": version ", notice.version, " in group ", notice.group, ": ",
                 notice.committed ? "committed " : "not committed ", notice.status.message());
      // Another process may have published the version again.
      if (!replaced) world.OnOutcome(notice.version, notice.group, notice.committed);
      return;
    default:
      return HandleUpdateNotice(notice);
  }
}

void Process::HandleUpdateNotice(const Notice& notice) {
  constexpr const char* kWords[] = {"PREPARE", "ARRIVED", "COMMIT", "ABORT"};
  const int index = static_cast<int>(notice.kind) - static_cast<int>(Notice::Kind::kPrepare);
  world.Note(name(), ": ", kWords[index], " of version ", notice.version, " ",
             notice.status.message());
  if (notice.kind == Notice::Kind::kAbort || !world.job().asked) return;
  pending_answers.push_back({notice, world.now() + world.UpTo(absl::Milliseconds(30))});
}

void Process::GiveAnswers() {
  for (size_t i = 0; i < pending_answers.size();) {
    if (world.now() < pending_answers[i].at) {
      ++i;
      continue;
    }
    const Notice notice = pending_answers[i].notice;
    pending_answers.erase(pending_answers.begin() + static_cast<std::ptrdiff_t>(i));
    absl::Status answer;
    if (mood == Mood::kSilent) {
      mood = Mood::kAccept;
      continue;
    }
    if ((mood == Mood::kRefuse && notice.kind == Notice::Kind::kPrepare) ||
        (mood == Mood::kVeto && notice.kind == Notice::Kind::kArrived)) {
      mood = Mood::kAccept;
      answer = absl::FailedPreconditionError("the user will not");
    }
    worker->Answer(notice.kind, notice.update, answer);
    HandleNotices();
  }
}

// --- the world ---

void World::DrawJob() {
  job_.trainers = 1 + static_cast<uint32_t>(Below(4));
  job_.replicas = job_.trainers % 2 == 0 && Below(3) == 0 ? 2 : 1;
  const uint32_t groups = 1 + static_cast<uint32_t>(Below(2));
  for (uint32_t g = 0; g < groups; ++g) {
    const uint32_t size = 1 + static_cast<uint32_t>(Below(2));
    job_.groups.push_back({absl::StrCat("group ", g), job_.workers, size});
    job_.workers += size;
  }
  job_.mode = std::array{Mode::kShadow, Mode::kShadowCopy, Mode::kInPlace}[Below(3)];
  job_.can_map = Below(2) == 0;
  job_.asked = Below(3) == 0;
  network_ = std::make_unique<LoopbackNetwork>(
      LoopbackOptions{.seed = static_cast<uint32_t>(Below(1000)), .can_map = job_.can_map});
}

std::unique_ptr<Process> World::MakeProcess(RankId id) {
  static_assert(kRows >= 4 && kColumns >= 4);
  auto process = std::make_unique<Process>(this, id, ++last_stream_);
  process->Begin();
  return process;
}

void World::StartController() {
  controller_at_ = absl::InfiniteFuture();
  CoordinatorOptions options;
  options.job = "simulated";
  options.incarnation = static_cast<uint32_t>(random_());
  options.decisions_are_durable = true;
  // As many as the log keeps of each group.
  std::vector<Decision> kept;
  std::map<std::string, int> left;
  for (const Decision& decision : decisions_) ++left[decision.group];
  for (const Decision& decision : decisions_) {
    if (left[decision.group]-- <= 4) kept.push_back(decision);
  }
  coordinator_ = std::make_unique<Coordinator>(options, kept, this);
  Note("a controller starts with ", kept.size(), " decisions");
}

void World::CrashController() {
  coordinator_.reset();
  work_.clear();
  // What was being written may be on disk, or not.
  for (const RecordInFlight& record : std::exchange(records_, {})) {
    if (Below(2) == 0) decisions_.push_back(record.decision);
  }
  for (auto& [id, stream] : streams_) {
    stream.to_controller_open = false;
    stream.to_controller.clear();
    stream.controller_closed = true;
    while (!stream.to_rank.empty() && Below(2) == 0) stream.to_rank.pop_back();
  }
}

void World::EndRecord(const RecordInFlight& record) {
  if (fail_records_ > 0) {
    --fail_records_;
    const absl::Status failed = absl::UnavailableError("the disk fails");
    if (Below(2) == 0) {
      Note("the decision about version ", record.decision.version, " is not recorded");
      return coordinator_->OnRecorded(record.ticket, Recorded::kNotRecorded, failed, now_);
    }
    if (Below(2) == 0) decisions_.push_back(record.decision);
    Note("nobody knows whether the decision about version ", record.decision.version,
         " is recorded");
    coordinator_->OnRecorded(record.ticket, Recorded::kUnknown, failed, now_);
    controller_at_ = now_ + UpTo(absl::Seconds(1));  // Somebody replaces it.
    return;
  }
  decisions_.push_back(record.decision);
  ++result_.committed;
  Note("recorded: group ", record.decision.group, " commits version ", record.decision.version);
  coordinator_->OnRecorded(record.ticket, Recorded::kDurable, absl::OkStatus(), now_);
}

void World::RunJobs() {
  std::vector<Computation> ready;
  std::erase_if(work_, [&](Computation& computation) {
    if (now_ < computation.at) return false;
    ready.push_back(std::move(computation));
    return true;
  });
  for (const Computation& computation : ready) {
    if (coordinator_ == nullptr) return;
    computation.work()(now_);
    active_ = true;
  }
  std::vector<RecordInFlight> recorded;
  std::erase_if(records_, [&](const RecordInFlight& record) {
    if (now_ < record.at) return false;
    recorded.push_back(record);
    return true;
  });
  for (const RecordInFlight& record : recorded) {
    if (coordinator_ == nullptr) return;
    EndRecord(record);
    active_ = true;
  }
}

void World::EndForRank(uint64_t id, Stream& stream) {
  Process* const process = stream.process;
  stream.process = nullptr;
  stream.to_rank_open = false;
  active_ = true;
  if (process != nullptr && process->stream == id) process->OnStreamEnd();
}

void World::OnDelivered(const Process& process, Trigger trigger) {
  for (size_t i = 0; i < armed_.size(); ++i) {
    const auto& rank = ranks_[armed_[i].who % ranks_.size()];
    if (armed_[i].trigger != trigger || rank.get() != &process) continue;
    triggered_.push_back(armed_[i]);
    armed_.erase(armed_.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

// One message in one direction, or the end of the stream. Returns true if there was one.
bool World::Deliver(uint64_t id, Stream& stream) {
  if (now_ < stream.held_until) return false;
  const bool stopped = stream.process != nullptr &&
                       (now_ < stream.process->stopped_until || stream.process->interrupted);
  if (Below(2) == 0) {
    if (coordinator_ == nullptr) return false;
    if (!stream.to_controller.empty()) {
      const proto::RankMessage message = std::move(stream.to_controller.front());
      stream.to_controller.pop_front();
      Process* const from = stream.process;
      coordinator_->OnMessage(id, message, now_);
      if (from != nullptr && message.has_arrived()) OnDelivered(*from, Trigger::kArrived);
      if (from != nullptr && message.has_shown()) OnDelivered(*from, Trigger::kShown);
      return true;
    }
    if (stream.process == nullptr && stream.to_controller_open) {
      stream.to_controller_open = false;
      coordinator_->OnGone(id, now_);
      return true;
    }
    return false;
  }
  if (stopped || stream.process == nullptr) return false;
  if (!stream.opened) {
    if (coordinator_ == nullptr) {
      EndForRank(id, stream);
    } else {
      stream.opened = true;
      stream.process->OnStreamOpen();
    }
    return true;
  }
  if (!stream.to_rank.empty()) {
    const proto::ControllerMessage message = std::move(stream.to_rank.front());
    stream.to_rank.pop_front();
    Process* const to = stream.process;
    to->OnMessage(message);
    if (message.has_prepare()) OnDelivered(*to, Trigger::kPrepare);
    if (message.has_start()) OnDelivered(*to, Trigger::kStart);
    if (message.has_commit()) OnDelivered(*to, Trigger::kCommit);
    return true;
  }
  if (stream.controller_closed) {
    EndForRank(id, stream);
    return true;
  }
  return false;
}

void World::DeliverSome() {
  std::vector<uint64_t> ids;
  for (const auto& [id, stream] : streams_) ids.push_back(id);
  std::shuffle(ids.begin(), ids.end(), random_);
  for (const uint64_t id : ids) {
    for (uint64_t messages = Below(4); messages > 0; --messages) {
      const auto found = streams_.find(id);
      if (found == streams_.end() || !Deliver(id, found->second)) break;
      active_ = true;
    }
  }
  // A stream that has ended on both sides.
  std::erase_if(streams_, [](const auto& s) {
    return s.second.process == nullptr && !s.second.to_controller_open;
  });
}

void World::BreakStream(uint64_t id) {
  Stream* stream = Find(id);
  if (stream == nullptr) return;
  // What was on its way is lost, in part.
  while (!stream->to_controller.empty() && Below(2) == 0) stream->to_controller.pop_back();
  while (!stream->to_rank.empty() && Below(2) == 0) stream->to_rank.pop_back();
  Process* const process = stream->process;
  stream->process = nullptr;
  stream->controller_closed = true;
  active_ = true;
  if (process != nullptr && process->stream == id) process->OnStreamEnd();
}

void World::StepRanks() {
  std::vector<Process*> processes;
  for (const auto& rank : ranks_) {
    if (rank != nullptr) processes.push_back(rank.get());
  }
  for (const auto& zombie : zombies_) processes.push_back(zombie.get());
  std::shuffle(processes.begin(), processes.end(), random_);
  for (Process* process : processes) {
    if (now_ < process->stopped_until || Below(4) == 0) continue;
    const uint64_t before = process->fabric->polled_events();
    process->Step(now_);
    process->interrupted = false;
    active_ = active_ || process->fabric->polled_events() != before;
  }
}

void World::Strike(const Fault& fault) {
  const uint32_t index = fault.who % static_cast<uint32_t>(ranks_.size());
  std::unique_ptr<Process>& rank = ranks_[index];
  const absl::Duration duration = absl::Milliseconds(fault.duration_ms);
  if (rank == nullptr && fault.kind != FaultKind::kCrashController &&
      fault.kind != FaultKind::kFailRecord && fault.kind != FaultKind::kJumpClock) {
    return;
  }
  ++result_.faults[static_cast<size_t>(fault.kind)];
  active_ = true;
  Note("FAULT ", simulation::Name(fault.kind), rank != nullptr ? " " + rank->name() : "", " for ",
       absl::FormatDuration(duration));
  const auto peer_name = [&] {
    const uint32_t other = fault.other % (rank->is_trainer() ? job_.workers : job_.trainers);
    return ToString(RankId{rank->is_trainer() ? Role::kWorker : Role::kTrainer, other});
  };
  switch (fault.kind) {
    case FaultKind::kCrashRank: {
      BreakStream(rank->stream);
      network_->Kill(rank->name());
      Destroy(rank);
      restart_at_[index] = now_ + duration;
      return;
    }
    case FaultKind::kStopRank:
      rank->stopped_until = now_ + duration;
      rank->interrupted = true;
      rank->fabric->SkipNextPoll();
      return;
    case FaultKind::kReplaceRank:
      if (HasRival(*rank)) return;  // Two processes at a time.
      rank->stopped_until = now_ + duration;
      rank->interrupted = true;
      rank->fabric->SkipNextPoll();
      rank->replaced = rank->was_replaced = true;
      zombies_.push_back(std::move(rank));
      restart_at_[index] = now_ + UpTo(absl::Milliseconds(500));
      return;
    case FaultKind::kBreakStream:
      return BreakStream(rank->stream);
    case FaultKind::kDelayStream:
      if (Stream* stream = Find(rank->stream)) stream->held_until = now_ + duration;
      return;
    case FaultKind::kCrashController:
      if (coordinator_ == nullptr) return;
      CrashController();
      controller_at_ = now_ + duration;
      return;
    case FaultKind::kFailRecord:
      ++fail_records_;
      return;
    case FaultKind::kCutLanes:
      rank->fabric->KillLanes(peer_name(), absl::UnavailableError("cut"));
      return;
    case FaultKind::kHoldPosts:
      rank->fabric->HoldPosts(peer_name());
      held_posts_.push_back({now_ + duration, rank.get(), peer_name()});
      return;
    case FaultKind::kJumpClock:
      now_ += duration;
      // Nobody could be told meanwhile.
      for (const auto& process : ranks_) {
        if (process == nullptr) continue;
        for (auto& [token, deadline] : process->due) deadline = std::max(deadline, now_);
      }
      return;
    case FaultKind::kRefuse:
      rank->mood = Process::Mood::kRefuse;
      return;
    case FaultKind::kVeto:
      rank->mood = Process::Mood::kVeto;
      return;
    case FaultKind::kSilentUser:
      rank->mood = Process::Mood::kSilent;
      return;
    case FaultKind::kReadLong:
      return rank->TakeSnapshot(duration);
    case FaultKind::kCancelPublish:
      return rank->CancelPublish();
    case FaultKind::kCorrupt:
      rank->fabric->CorruptWrite(peer_name(), 1 + fault.other % 3);
      return;
    case FaultKind::kLeave:
      if (!rank->joined) return;
      rank->replaced = rank->was_replaced = true;
      rank->Leave();
      zombies_.push_back(std::move(rank));
      restart_at_[index] = now_ + duration;
      return;
  }
}

// The training loop: every trainer publishes the same version, and the next one once all have
// ended.
void World::Train() {
  bool busy = false, all_joined = true, any_joined = false;
  for (uint32_t t = 0; t < job_.trainers; ++t) {
    const auto& trainer = ranks_[t];
    if (trainer == nullptr || !trainer->joined) {
      all_joined = false;
      continue;
    }
    any_joined = true;
    if (trainer->publishing != 0) busy = true;
  }
  if (!any_joined || (!all_joined && calm_)) return;
  const auto begin = [&](Process& trainer) {
    const absl::Duration timeout =
        calm_ ? absl::Seconds(20) : absl::Milliseconds(200) + UpTo(absl::Seconds(8));
    trainer.Publish(version_, timeout);
    active_ = true;
  };
  // Those that lag behind begin when they like.
  for (uint32_t t = 0; t < job_.trainers; ++t) {
    const auto& trainer = ranks_[t];
    if (trainer == nullptr || !trainer->joined || trainer->ended || trainer->left) continue;
    if (now_ < trainer->stopped_until || version_ == 0) continue;
    if (trainer->publishing == 0 && trainer->done < version_ && Below(3) == 0) {
      begin(*trainer);
      busy = true;
    } else if (trainer->publishing == 0 && trainer->done < version_) {
      busy = true;
    }
  }
  if (busy || now_ < next_version_at_) return;
  if (calm_ && attempts_ > 0) {
    // The attempt has ended for every trainer: has it committed everywhere?
    bool everywhere = true, decided = true;
    for (const Group& group : job_.groups) {
      everywhere = everywhere && told_committed_[group.name].contains(version_);
      decided = decided && (told_committed_[group.name].contains(version_) ||
                            told_failed_[group.name].contains(version_));
    }
    bool any_failed = false;
    for (uint32_t t = 0; t < job_.trainers; ++t) {
      any_failed = any_failed || (ranks_[t] != nullptr && ranks_[t]->failed);
    }
    if (everywhere) {
      recovered_ = true;
      return;
    }
    if (!decided && !any_failed) return;  // It is SENT, and the outcome is on its way.
    if (attempts_ >= kMostAttempts) {
      return Violate(absl::StrCat("recovers: version ", version_, " is attempt ", attempts_,
                                  " since faults have ended, and was not committed"));
    }
  }
  if (calm_) ++attempts_;
  ++version_;
  Note("the trainers go on to version ", version_);
  next_version_at_ = now_ + UpTo(absl::Milliseconds(400));
}

void World::Destroy(std::unique_ptr<Process>& process) {
  std::erase_if(held_posts_, [&](const HeldPosts& held) { return held.process == process.get(); });
  for (auto& [id, stream] : streams_) {
    if (stream.process == process.get()) stream.process = nullptr;
  }
  process.reset();
}

// A process that could not join is started again, unless the one whose place it claimed is alive.
void World::ReplaceRefused(size_t index) {
  const RankId id = ranks_[index]->id;
  Destroy(ranks_[index]);
  restart_at_[index] = now_ + UpTo(absl::Milliseconds(500));
  for (auto& zombie : zombies_) {
    if (zombie->id != id || zombie->ended || zombie->left) continue;
    ranks_[index] = std::move(zombie);
    ranks_[index]->replaced = false;
    restart_at_[index] = absl::InfiniteFuture();
    break;
  }
  std::erase(zombies_, nullptr);
}

void World::CheckDue(Process& process) {
  if (now_ < process.stopped_until) {
    // Nobody can be told while the process does not run.
    for (auto& [token, deadline] : process.due)
      deadline = std::max(deadline, process.stopped_until);
    return;
  }
  for (const auto& [token, deadline] : process.due) {
    if (now_ > deadline + kMargin + absl::Milliseconds(200)) {
      Violate(absl::StrCat("bounded: ", process.name(), ": a call has not ended ",
                           absl::FormatDuration(now_ - deadline), " after its deadline"));
      return;
    }
  }
}

void World::CheckGrowth() {
  for (const auto& rank : ranks_) {
    if (rank == nullptr) continue;
    const size_t peers = rank->is_trainer() ? job_.workers : job_.trainers;
    const size_t lanes = rank->fabric->open_lanes();
    // Two ranks without NICs have one lane, or four.
    if (lanes > 4 * peers || rank->fabric->known_regions() > 16) {
      Violate(absl::StrCat("no growth: ", rank->name(), " has ", lanes, " lanes to ", peers,
                           " peers, and ", rank->fabric->known_regions(), " regions"));
    }
  }
}

void World::EndOfFaults() {
  calm_ = true;
  armed_.clear();
  triggered_.clear();
  fail_records_ = 0;
  attempts_ = 0;
  Note("faults have ended");
  for (const HeldPosts& held : std::exchange(held_posts_, {})) {
    held.process->fabric->LetPostsGo(held.peer);
  }
  if (coordinator_ == nullptr || !coordinator_->halted().ok()) {
    controller_at_ = std::min(controller_at_, now_);
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i] == nullptr) {
      restart_at_[i] = std::min(restart_at_[i], now_);
      continue;
    }
    ranks_[i]->stopped_until = std::min(ranks_[i]->stopped_until, now_);
    ranks_[i]->mood = Process::Mood::kAccept;
    ranks_[i]->snapshot_until = std::min(ranks_[i]->snapshot_until, now_);
    if (Stream* stream = Find(ranks_[i]->stream)) stream->held_until = now_;
  }
  for (const auto& zombie : zombies_) zombie->stopped_until = std::min(zombie->stopped_until, now_);
}

// At the end: everybody that lives shows the same, and it is what was last committed.
void World::CheckAll() {
  for (const Group& group : job_.groups) {
    for (uint32_t w = group.first; w < group.first + group.size; ++w) {
      const auto& worker = ranks_[job_.trainers + w];
      if (worker == nullptr) continue;
      const uint64_t shown = worker->worker->shown_version();
      const uint64_t newest = *told_committed_[group.name].rbegin();
      if (shown != newest) {
        Violate(absl::StrCat("together: ", worker->name(), " shows version ", shown, ", version ",
                             newest, " was reported as committed"));
      }
      if (worker->worker->dirty()) {
        Violate(absl::StrCat("whole: ", worker->name(), " is dirty at the end"));
      }
    }
  }
}

absl::Time World::NextEvent() {
  absl::Time next = absl::InfiniteFuture();
  if (next_fault_ < faults_.size()) {
    next = std::min(next, kStart + absl::Milliseconds(faults_[next_fault_].at_ms));
  }
  if (!calm_) next = std::min(next, kStart + kFaultyTime);
  if (coordinator_ != nullptr) next = std::min(next, coordinator_->next_deadline());
  next = std::min({next, controller_at_, next_version_at_ > now_ ? next_version_at_ : next});
  const auto add = [&](const Process& process) {
    if (now_ < process.stopped_until) {
      next = std::min(next, process.stopped_until);
    } else {
      next = std::min(next, process.next_deadline());
    }
    for (const auto& [token, deadline] : process.due) {
      next = std::min(next, std::max(now_, deadline + kMargin + absl::Milliseconds(250)));
    }
  };
  for (size_t i = 0; i < ranks_.size(); ++i) {
    ranks_[i] == nullptr ? void(next = std::min(next, restart_at_[i])) : add(*ranks_[i]);
  }
  for (const auto& zombie : zombies_) add(*zombie);
  for (const auto& [id, stream] : streams_) {
    if (stream.held_until > now_) next = std::min(next, stream.held_until);
  }
  for (const Computation& computation : work_) next = std::min(next, computation.at);
  for (const RecordInFlight& record : records_) next = std::min(next, record.at);
  for (const HeldPosts& held : held_posts_) next = std::min(next, held.until);
  return next;
}

Result World::Run() {
  StartController();
  for (uint32_t t = 0; t < job_.trainers; ++t) ranks_.push_back(MakeProcess({Role::kTrainer, t}));
  for (uint32_t w = 0; w < job_.workers; ++w) ranks_.push_back(MakeProcess({Role::kWorker, w}));
  restart_at_.assign(ranks_.size(), absl::InfiniteFuture());
  Note(job_.trainers, " trainers (", job_.replicas, " replicas), ", job_.groups.size(),
       " groups of ", job_.workers, " workers, ", waybill::Name(job_.mode),
       job_.can_map ? ", mapped" : ", posted", job_.asked ? ", users answer" : "");
  int idle = 0;
  while (result_.violation.empty() && !recovered_) {
    ++result_.steps;
    active_ = false;
    while (next_fault_ < faults_.size() && !calm_ &&
           now_ >= kStart + absl::Milliseconds(faults_[next_fault_].at_ms)) {
      const Fault& fault = faults_[next_fault_++];
      fault.trigger == Trigger::kTime ? Strike(fault) : armed_.push_back(fault);
    }
    for (const Fault& fault : std::exchange(triggered_, {})) Strike(fault);
    if (!calm_ && now_ >= kStart + kFaultyTime) EndOfFaults();
    if (now_ >= controller_at_) {
      if (coordinator_ != nullptr) CrashController();
      StartController();
    }
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i] != nullptr && ranks_[i]->ended) ReplaceRefused(i);
      if (ranks_[i] != nullptr || now_ < restart_at_[i]) continue;
      restart_at_[i] = absl::InfiniteFuture();
      const bool trainer = i < job_.trainers;
      ranks_[i] = MakeProcess({trainer ? Role::kTrainer : Role::kWorker,
                               static_cast<uint32_t>(trainer ? i : i - job_.trainers)});
      ranks_[i]->done = version_;  // Whoever comes back does not publish again what was given up.
      Note(ranks_[i]->name(), " starts");
    }
    std::vector<HeldPosts> released;
    std::erase_if(held_posts_, [&](const HeldPosts& held) {
      if (now_ < held.until) return false;
      released.push_back(held);
      return true;
    });
    for (const HeldPosts& held : released) held.process->fabric->LetPostsGo(held.peer);
    DeliverSome();
    StepRanks();
    RunJobs();
    if (coordinator_ != nullptr && now_ >= coordinator_->next_deadline()) {
      coordinator_->OnTime(now_);
      if (coordinator_->next_deadline() <= now_) Violate("bounded: the controller's clock stands");
    }
    Train();
    for (const auto& rank : ranks_) {
      if (rank != nullptr) CheckDue(*rank);
    }
    if (result_.steps % 64 == 0) CheckGrowth();
    for (auto& zombie : zombies_) {
      if ((zombie->ended || zombie->left) && zombie->stream == 0) Destroy(zombie);
    }
    std::erase(zombies_, nullptr);
    now_ += absl::Microseconds(static_cast<int64_t>(20 + Below(300)));
    idle = active_ ? 0 : idle + 1;
    if (idle > 6) {
      const absl::Time next = NextEvent();
      if (next > now_) now_ = std::min(next, now_ + absl::Milliseconds(500));
      idle = 0;
    }
    if (now_ > kStart + kLatest) Violate("recovers: the job stands still");
  }
  // What was committed last reaches everybody.
  for (int i = 0; i < 200 && result_.violation.empty(); ++i) {
    DeliverSome();
    StepRanks();
    RunJobs();
    now_ += absl::Microseconds(200);
  }
  if (result_.violation.empty()) CheckAll();
  coordinator_.reset();
  return std::move(result_);
}

}  // namespace

absl::string_view Name(FaultKind kind) {
  constexpr absl::string_view kNames[] = {"crash",
                                          "stop",
                                          "replace",
                                          "break the stream of",
                                          "delay the stream of",
                                          "crash the controller",
                                          "fail a record",
                                          "cut a lane of",
                                          "hold posts of",
                                          "jump the clock",
                                          "refuse at",
                                          "veto at",
                                          "silent user of",
                                          "read long at",
                                          "cancel at",
                                          "leave",
                                          "damage a write of"};
  static_assert(std::size(kNames) == kFaultKinds);
  return kNames[static_cast<size_t>(kind)];
}

std::vector<Fault> DrawFaults(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x9E3779B97F4A7C15u);
  std::vector<Fault> faults(1 + random() % 8);
  for (Fault& fault : faults) {
    fault.at_ms = static_cast<int64_t>(
        random() % static_cast<uint64_t>(absl::ToInt64Milliseconds(kFaultyTime) - 1500));
    fault.kind = static_cast<FaultKind>(random() % kFaultKinds);
    fault.who = static_cast<uint32_t>(random() % 1000);
    fault.other = static_cast<uint32_t>(random() % 1000);
    // Most are short; some outlast deadlines.
    fault.duration_ms = static_cast<int64_t>(random() % 4 == 0 ? random() % 6000 : random() % 600);
    const bool moment = fault.kind <= FaultKind::kHoldPosts && random() % 2 == 0;
    if (moment) fault.trigger = static_cast<Trigger>(1 + random() % (kTriggers - 1));
    // Another process has the place of one that is silent for two seconds, perhaps amid its writes.
    if (fault.kind == FaultKind::kReplaceRank && random() % 2 == 0) {
      fault.duration_ms += 4000;
      fault.trigger = Trigger::kStart;
    }
  }
  std::sort(faults.begin(), faults.end(),
            [](const Fault& a, const Fault& b) { return a.at_ms < b.at_ms; });
  return faults;
}

Result RunJob(uint64_t seed, const std::vector<Fault>& faults, Story story) {
  return World(seed, faults, story).Run();
}

std::vector<Fault> Shrink(uint64_t seed, std::vector<Fault> faults) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    for (size_t i = 0; i < faults.size(); ++i) {
      std::vector<Fault> fewer = faults;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      if (RunJob(seed, fewer, Story::kNotTold).violation.empty()) continue;
      faults = std::move(fewer);
      smaller = true;
      break;
    }
  }
  return faults;
}

std::string Describe(const std::vector<Fault>& faults) {
  constexpr const char* kWhen[] = {"at",
                                   "at the first PREPARE from",
                                   "at the first START from",
                                   "at the first COMMIT from",
                                   "at the first ARRIVED from",
                                   "at the first SHOWN from"};
  static_assert(std::size(kWhen) == kTriggers);
  std::string text;
  for (const Fault& fault : faults) {
    absl::StrAppend(&text, absl::StrFormat("  %s %.3f s: %s (rank %d, peer %d, %d ms)\n",
                                           kWhen[static_cast<size_t>(fault.trigger)],
                                           static_cast<double>(fault.at_ms) / 1e3,
                                           std::string(Name(fault.kind)), fault.who, fault.other,
                                           fault.duration_ms));
  }
  return text;
}

}  // namespace waybill::simulation
