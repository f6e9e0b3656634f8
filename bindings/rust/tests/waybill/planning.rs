// SPDX-License-Identifier: Apache-2.0

//! What needs no network.

use waybill::*;

#[test]
fn types_have_names_and_sizes() {
    assert_eq!(
        (DType::BF16.to_string().as_str(), DType::BF16.size()),
        ("BF16", 2)
    );
    assert_eq!(
        (DType::F8_E4M3.to_string().as_str(), DType::F8_E4M3.size()),
        ("F8_E4M3", 1)
    );
}

#[test]
fn a_plan_is_made() {
    let layout = Layout::of_model("qwen3-0.6b", 2).unwrap();
    let served = WorkerLayout {
        sharding: "tp=2",
        format: "fp8-block",
        ..Default::default()
    };
    let trainers: Vec<_> = (0..2)
        .map(|rank| layout.trainer_manifest("fsdp=2", rank).unwrap())
        .collect();
    let workers: Vec<_> = (0..2)
        .map(|rank| layout.worker_manifest(&served, rank).unwrap())
        .collect();
    let parameters = layout.worker_parameters(&served, 0).unwrap();
    assert!(parameters.contains("\"offset_bytes\""), "{parameters:.200}");
    let plan = Plan::build(&trainers, &workers, 0).unwrap();
    let summary = plan.summarise().unwrap();
    assert!(summary.bytes > 0 && summary.busiest_to_bound >= 1.0);
    let routes = plan.explain("routes").unwrap();
    assert!(routes.contains(&format!("\"bytes\":{}", summary.bytes)));
    assert!(plan
        .explain("text")
        .unwrap()
        .contains("busiest rank / lower bound"));
    let made_up = layout.load(&workers[0], &mut [0; 8]).unwrap_err();
    assert_eq!(made_up.code(), Code::FailedPrecondition);
}

#[test]
fn a_manifest_is_the_same_as_bytes_and_back() {
    let quantisation = quantisation_named("fp8-block").unwrap();
    assert_eq!(quantisation.block_rows, 128);
    let quantisation = Some(quantisation);
    let mut m = Manifest::new().unwrap();
    m.add_region("memory", 1 << 20).unwrap();
    let tensor = m.add_tensor("w", DType::BF16, &[256, 256]).unwrap();
    m.add_shard(&Shard {
        tensor,
        content: Content::Quantised,
        quantisation,
        ranges: &[0..128, 0..256],
        strides: &[256, 1],
        ..Default::default()
    })
    .unwrap();
    m.add_shard(&Shard {
        tensor,
        content: Content::Scales,
        quantisation,
        offset_bytes: 1 << 16,
        ..Default::default()
    })
    .unwrap();
    m.add_padding(&Padding {
        offset_bytes: 1 << 17,
        element_bytes: 2,
        extents: &[8],
        ..Default::default()
    })
    .unwrap();
    m.add_alias("head", tensor).unwrap();
    assert_eq!(
        (m.region_count(), m.region_size(0), m.region_size(1)),
        (1, 1 << 20, 0)
    );
    let copy = Manifest::decode(&m.encode().unwrap()).unwrap();
    assert_eq!(copy.encode(), m.encode());
    assert_eq!(copy.describe(), m.describe());
}
