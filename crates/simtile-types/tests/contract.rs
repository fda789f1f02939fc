//! Launch contracts as a caller sees them.

use simtile_types::LaunchConfig;
use simtile_types::contract::{
    BlockRequirement, CoordinateRequirement, DynamicSharedMemoryRequirement as Smem,
    LaunchContractError as E, LaunchContractSpec, check_cluster,
};

fn config(block_dim: (u32, u32, u32)) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, 1, 1), block_dim, shared_mem_bytes: 0 }
}

#[test]
fn the_most_threads_of_a_contract_bound_the_product() {
    let spec = LaunchContractSpec::new("k", BlockRequirement::MaxThreads(64), Smem::NONE);
    for (block, ok) in [((64, 1, 1), true), ((8, 4, 2), true), ((65, 1, 1), false), ((8, 4, 3), false)] {
        match spec.check(&config(block)) {
            Ok(()) => assert!(ok, "{block:?}"),
            Err(E::BlockThreadsExceedContract { threads, limit: 64, .. }) => {
                assert_eq!(threads, u64::from(block.0) * u64::from(block.1) * u64::from(block.2));
                assert!(!ok);
            }
            Err(other) => panic!("{block:?}: {other}"),
        }
    }
    // A product beyond 64 bits is no small number.
    let most = (u32::MAX, u32::MAX, u32::MAX);
    assert!(matches!(spec.check(&config(most)), Err(E::DimensionProductOverflow { .. })));
}

#[test]
fn a_cluster_has_no_zero() {
    for (cluster, axis) in [((0, 1, 1), "x"), ((1, 0, 1), "y"), ((1, 1, 0), "z")] {
        let error = check_cluster("k", (8, 8, 8), cluster).unwrap_err();
        assert!(matches!(error, E::ZeroDimension { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("kernel k: cluster {axis} is 0"));
    }
    assert!(check_cluster("k", (8, 8, 8), (2, 4, 8)).is_ok());
}

#[test]
fn a_contract_has_cluster_and_cooperation_and_shows_what_was_said() {
    let spec = LaunchContractSpec::new(
        "both",
        BlockRequirement::Exact((32, 1, 1)),
        Smem::Exact { bytes: 64, alignment: 16 },
    )
    .with_cluster((2, 1, 1))
    .with_cooperative()
    .with_min_compute_capability(9, 0)
    .with_u32_coordinates();
    assert_eq!((spec.name(), spec.block()), ("both", BlockRequirement::Exact((32, 1, 1))));
    assert_eq!((spec.cluster(), spec.cooperative()), (Some((2, 1, 1)), true));
    assert_eq!(spec.min_compute_capability(), Some((9, 0)));
    assert_ne!(spec.coordinates(), CoordinateRequirement::Native);
    let smem = spec.dynamic_shared_memory();
    assert_eq!((smem.max_bytes(), smem.alignment()), (64, 16));
    let fits = LaunchConfig { grid_dim: (4, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 64 };
    spec.check(&fits).unwrap();
    let odd = LaunchConfig { grid_dim: (3, 1, 1), ..fits };
    assert!(matches!(spec.check(&odd), Err(E::ClusterDoesNotDivideGrid { grid: 3, cluster: 2, .. })));
    let plain = LaunchContractSpec::new("plain", BlockRequirement::MaxThreads(1), Smem::NONE);
    assert_eq!((plain.cluster(), plain.cooperative(), plain.min_compute_capability()), (None, false, None));
}
