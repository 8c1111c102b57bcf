//! Cards by name, with the memory that the CUDA driver reports for them.
//!
//! `cudaDeviceProp::totalGlobalMem` is less than what the vendor and `nvidia-smi` say, and it
//! varies by about 1% with the driver. The table has the least that public logs from Linux show.
//! Where no log has bytes, the number is the least that its MiB can mean.

/// Words of a driver's name for other models than those without them.
const VARIANTS: [&str; 5] = ["3e", "d", "laptop", "super", "ti"];

/// A card, and the memory that programs see.
#[derive(Clone, Copy, Debug)]
pub struct KnownCard {
    /// Its name as people write it.
    pub name: &'static str,
    /// The names that users type.
    short_names: &'static [&'static str],
    /// Bytes of its memory, as the CUDA driver reports them.
    pub total_bytes: u64,
    /// Major and minor version of its compute capability (developer.nvidia.com/cuda-gpus).
    pub compute_capability: (u32, u32),
    /// Number of multiprocessors (NVIDIA's data sheets and white papers).
    pub multiprocessors: u32,
    /// Bytes that a CUDA context takes of it, `None` where this was not measured.
    pub context_bytes: Option<u64>,
}

const fn card(
    name: &'static str,
    short_names: &'static [&'static str],
    total_bytes: u64,
    compute_capability: (u32, u32),
    multiprocessors: u32,
) -> KnownCard {
    KnownCard { name, short_names, total_bytes, compute_capability, multiprocessors, context_bytes: None }
}

/// All known cards, the smallest first. The source of the bytes is on the line before them.
static CARDS: &[KnownCard] = &[
    // deviceQuery in the README of a Yocto layer for NVIDIA's open kernel modules.
    card("T400 (4 GB)", &["t400", "t400-4gb"], 3_951_230_976, (7, 5), 6),
    // deviceQuery with CUDA 13.2; 5,803 MiB in logs of llama.cpp.
    card("RTX 3050 (6 GB)", &["rtx3050-6gb", "3050-6gb"], 6_085_214_208, (8, 6), 18),
    // 7,806 MiB, rounded, in logs of Ultralytics.
    card(
        "RTX 4060 Ti (8 GB)",
        &["rtx4060ti", "4060-ti", "rtx4060ti-8gb", "4060-ti-8gb"],
        8_184_659_968,
        (8, 9),
        34,
    ),
    // 7,807 MiB, rounded, in logs of Ultralytics.
    card("RTX 4060", &["rtx4060", "4060"], 8_185_708_544, (8, 9), 24),
    // deviceQuery with CUDA 12.8; 7,817 MiB in a log of TensorRT.
    card("RTX 3070", &["rtx3070", "3070"], 8_197_111_808, (8, 6), 46),
    // 7,833 MiB, rounded, in logs of Ultralytics.
    card("RTX 3060 Ti", &["rtx3060ti", "3060-ti"], 8_212_971_520, (8, 6), 38),
    // 7,837 MiB in a list of devices of llama.cpp.
    card("RTX 3050 (8 GB)", &["rtx3050", "3050", "rtx3050-8gb", "3050-8gb"], 8_217_690_112, (8, 6), 20),
    // deviceQuery.
    card("RTX 3080 (10 GB)", &["rtx3080", "3080"], 10_472_390_656, (8, 6), 68),
    // caps-tum/mt4g.
    card("RTX 2080 Ti", &["rtx2080ti", "2080-ti"], 11_348_672_512, (7, 5), 68),
    // deviceQuery with CUDA 8.0.
    card("GTX 1080 Ti", &["gtx1080ti", "1080-ti"], 11_706_630_144, (6, 1), 28),
    // 11,774 MiB in a list of devices of llama.cpp.
    card("RTX 5070", &["rtx5070", "5070"], 12_345_933_824, (12, 0), 48),
    // 11,866 MiB in logs of llama.cpp.
    card("RTX 4070", &["rtx4070", "4070"], 12_442_402_816, (8, 9), 46),
    // 11,906 MiB in logs of llama.cpp.
    card("RTX 3060 (12 GB)", &["rtx3060", "3060"], 12_484_345_856, (8, 6), 28),
    // total memory of torch on Colab.
    card("T4", &["t4"], 15_637_086_208, (7, 5), 40),
    // 15,808 MiB in logs of llama.cpp.
    card("RTX 5070 Ti", &["rtx5070ti", "5070-ti"], 16_575_889_408, (12, 0), 70),
    // 15,825 MiB in logs of llama.cpp.
    card(
        "RTX 5060 Ti (16 GB)",
        &["rtx5060ti", "5060-ti", "rtx5060ti-16gb", "5060-ti-16gb"],
        16_593_715_200,
        (12, 0),
        36,
    ),
    // 15,840 MiB, rounded, in logs of Ultralytics.
    card("RTX 5080", &["rtx5080", "5080"], 16_608_919_552, (12, 0), 84),
    // total_memory=15934MB of torch.
    card("RTX 4070 Ti SUPER", &["rtx4070tisuper", "4070-ti-super"], 16_708_009_984, (8, 9), 66),
    // deviceQuery with CUDA 13.1.
    card("RTX 4060 Ti (16 GB)", &["rtx4060ti-16gb", "4060-ti-16gb"], 16_722_821_120, (8, 9), 34),
    // total_memory=16049MB of torch.
    card("RTX 4080", &["rtx4080", "4080"], 16_828_596_224, (8, 9), 76),
    // deviceQuery.
    card("V100 (16 GB)", &["v100-16gb", "v100"], 16_911_433_728, (7, 0), 80),
    // 16,269 MiB, rounded, in logs of Ultralytics.
    card("P100", &["p100"], 17_058_758_656, (6, 0), 56),
    // deviceQuery in thamada/gls.
    card("L4", &["l4"], 23_570_219_008, (8, 9), 58),
    // deviceQuery in thamada/gls.
    card("A10", &["a10"], 23_595_909_120, (8, 6), 72),
    // total_memory=22587MB of torch.
    card("A10G", &["a10g"], 23_684_186_112, (8, 6), 80),
    // deviceQuery.
    card("RTX 3090", &["rtx3090", "3090"], 25_206_325_248, (8, 6), 82),
    // deviceQuery.
    card("RTX 4090", &["rtx4090", "4090"], 25_250_627_584, (8, 9), 128),
    // 24,164 MiB, rounded, in logs of Ultralytics; deviceQuery (25,343,295,488 bytes).
    card("A30", &["a30"], 25_337_266_176, (8, 0), 56),
    // deviceQuery.
    card("RTX 5090", &["rtx5090", "5090"], 33_660_534_784, (12, 0), 170),
    // deviceQuery.
    card("V100 (32 GB)", &["v100-32gb"], 34_058_272_768, (7, 0), 80),
    // deviceQuery; total_memory=40326MB of torch.
    card("A100 (40 GB)", &["a100-40gb"], 42_285_268_992, (8, 0), 108),
    // deviceQuery in alvarobartt/cuda-device-query.
    card("L40S", &["l40s"], 47_576_711_168, (8, 9), 142),
    // 45,386 MiB, rounded, in a report on a training with Ultralytics; OOM messages (44.40 GiB).
    card("L40", &["l40"], 47_590_146_048, (8, 9), 142),
    // deviceQuery in thamada/gls.
    card("A40", &["a40"], 47_608_692_736, (8, 6), 84),
    // 48,497 MiB, rounded, in logs of Ultralytics; ECC off.
    card("RTX 6000 Ada", &["rtx6000ada", "6000-ada"], 50_852_265_984, (8, 9), 142),
    // a6000.txtpb in openxla/xla; total_memory of torch; ECC off.
    card("RTX A6000", &["a6000", "rtx-a6000"], 51_041_271_808, (8, 6), 84),
    // GpuTargetConfig of XLA.
    card("H100 (SXM)", &["h100", "h100-sxm"], 84_929_347_584, (9, 0), 132),
    // h100_pcie.txtpb in openxla/xla; total_memory=81008MB of torch.
    card("H100 PCIe", &["h100-pcie"], 84_942_979_072, (9, 0), 114),
    // deviceQuery; cudaGetDeviceProperties.
    card("A100 (80 GB)", &["a100", "a100-80gb"], 84_974_239_744, (8, 0), 108),
    // deviceQuery in thamada/gls.
    card("H100 NVL", &["h100-nvl"], 99_861_594_112, (9, 0), 132),
    // deviceQuery in thamada/gls.
    card("GH200 (96 GB)", &["gh200"], 101_468_602_368, (9, 0), 132),
    // total_memory of torch. rtx6000pro.txtpb in openxla/xla has the nominal 96 GiB.
    card(
        "RTX PRO 6000 Blackwell",
        &["rtxpro6000", "pro-6000", "rtx-pro-6000-blackwell"],
        101_974_081_536,
        (12, 0),
        188,
    ),
    // total_memory=97285MB of torch.
    card("H20", &["h20"], 102_010_716_160, (9, 0), 78),
    // deviceQuery in thamada/gls; OOM messages (139.72 GiB).
    card("H200", &["h200"], 150_021_734_400, (9, 0), 132).with_context(552_402_944),
    // total_memory=182631MB of torch.
    card("B200", &["b200"], 191_502_483_456, (10, 0), 148),
    // deviceProperties of a trace of torch's profiler; OOM messages (267.69 GiB).
    card("B300", &["b300"], 287_428_640_768, (10, 3), 148),
];

impl KnownCard {
    /// The context of torch 2.11 with CUDA 13.0 and driver 580 (docs/gpu-validation.md).
    const fn with_context(mut self, bytes: u64) -> Self {
        self.context_bytes = Some(bytes);
        self
    }

    /// The card of a compute capability whose memory is closest to this much.
    pub fn closest(compute_capability: (u32, u32), bytes: u64) -> Option<Self> {
        let alike = CARDS.iter().filter(|card| card.compute_capability == compute_capability);
        alike.min_by_key(|card| card.total_bytes.abs_diff(bytes)).copied()
    }

    /// The card of a name; case, spaces, hyphens and underscores do not matter.
    pub fn find(name: &str) -> Option<Self> {
        let plain = |text: &str| -> String {
            text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
        };
        let wanted = plain(name);
        CARDS.iter().find(|card| card.short_names.iter().any(|short| plain(short) == wanted)).copied()
    }

    /// Whether the name that the driver reports, such as `NVIDIA A100-SXM4-80GB`, is of this card.
    /// A name without a size may be of several.
    pub fn is_named(&self, driver_name: &str) -> bool {
        let driver_words = words(driver_name);
        let own = self.words_in(&driver_words);
        own.is_some() && CARDS.iter().all(|other| other.words_in(&driver_words) <= own)
    }

    /// The number of words that one of the card's names shares with a driver's name. `None` if the
    /// driver's name is of another model.
    fn words_in(&self, driver_words: &[String]) -> Option<usize> {
        let names_size = driver_words.iter().any(|word| is_size(word));
        let of_name = |short: &&str| {
            let own: Vec<String> =
                words(short).into_iter().filter(|word| names_size || !is_size(word)).collect();
            let has = |words: &[String], word: &str| words.iter().any(|one| one == word);
            let is_same_variant =
                VARIANTS.iter().all(|variant| has(&own, variant) || !has(driver_words, variant));
            (is_same_variant && own.iter().all(|word| has(driver_words, word))).then_some(own.len())
        };
        self.short_names.iter().filter_map(of_name).max()
    }

    /// The smallest card with at least this much memory.
    pub fn smallest_with(bytes: u64) -> Option<Self> {
        CARDS.iter().find(|card| card.total_bytes >= bytes).copied()
    }

    /// The first name of each card.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CARDS.iter().filter_map(|card| card.short_names.first().copied())
    }
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect()
}

/// True for a size such as `80gb`.
fn is_size(word: &str) -> bool {
    word.strip_suffix("gb").is_some_and(|number| !number.is_empty() && number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_any_of_their_names() {
        assert!(CARDS.is_sorted_by_key(|card| card.total_bytes));
        let bytes = |name| KnownCard::find(name).map(|card| card.total_bytes);
        assert_eq!(bytes("H100"), Some(84_929_347_584));
        assert_eq!((bytes("RTX 4090"), bytes("a100_80GB")), (bytes("4090"), bytes("a100")));
        assert_eq!((bytes("RTX 4060 Ti"), bytes("4060ti-16GB")), (Some(8_184_659_968), Some(16_722_821_120)));
        assert_eq!(bytes("RTX PRO 6000"), Some(101_974_081_536));
        assert_eq!(bytes("H1000"), None);
        for name in KnownCard::names() {
            assert!(bytes(name).is_some(), "{name}");
        }
        let all: Vec<String> =
            CARDS.iter().flat_map(|card| card.short_names).map(|name| name.replace('-', "")).collect();
        let distinct: std::collections::BTreeSet<&String> = all.iter().collect();
        assert_eq!(all.len(), distinct.len(), "a name belongs to one card");
    }

    #[test]
    fn names_of_the_driver_belong_to_one_model() {
        let is_named = |card, name| KnownCard::find(card).is_some_and(|card| card.is_named(name));
        assert!(is_named("a100", "NVIDIA A100-SXM4-80GB") && is_named("3090", "NVIDIA GeForce RTX 3090"));
        assert!(!is_named("a10", "NVIDIA A100-SXM4-80GB") && !is_named("h200", "NVIDIA H100 80GB HBM3"));
        assert!(!is_named("h100", ""));
        let of_name = |name: &str| -> Vec<&str> {
            CARDS.iter().filter(|card| card.is_named(name)).map(|card| card.name).collect()
        };
        for (name, cards) in [
            ("NVIDIA A100-SXM4-40GB", &["A100 (40 GB)"][..]),
            ("NVIDIA H100 PCIe", &["H100 PCIe"]),
            ("NVIDIA H100 80GB HBM3", &["H100 (SXM)"]),
            ("NVIDIA RTX 6000 Ada Generation", &["RTX 6000 Ada"]),
            ("NVIDIA RTX PRO 6000 Blackwell Server Edition", &["RTX PRO 6000 Blackwell"]),
            ("NVIDIA GeForce RTX 4060", &["RTX 4060"]),
            ("NVIDIA GeForce RTX 4060 Ti", &["RTX 4060 Ti (8 GB)", "RTX 4060 Ti (16 GB)"]),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", &["RTX 4070 Ti SUPER"]),
            ("NVIDIA GeForce RTX 4070 SUPER", &[]),
            ("NVIDIA GeForce RTX 4090 Laptop GPU", &[]),
            ("NVIDIA GeForce RTX 4090 D", &[]),
            ("NVIDIA T400 4GB", &["T400 (4 GB)"]),
        ] {
            assert_eq!(of_name(name), cards, "{name}");
        }
    }

    #[test]
    fn closest_card_has_the_capability() {
        let name = |capability, bytes| KnownCard::closest(capability, bytes).map(|card| card.name);
        assert_eq!(name((8, 9), 24 << 30), Some("RTX 4090"));
        assert_eq!(name((8, 9), 22 << 30), Some("L4"));
        assert_eq!(name((8, 7), 24 << 30), None);
    }

    #[test]
    fn smallest_card_holds_the_bytes() {
        let name = |bytes| KnownCard::smallest_with(bytes).map(|card| card.name);
        assert_eq!(name(1), Some("T400 (4 GB)"));
        assert_eq!(name(15_637_086_208), Some("T4"));
        assert_eq!(name(15_637_086_209), Some("RTX 5070 Ti"));
        assert_eq!(name(1 << 40), None);
    }
}
