//! `#[simtile::test(…)]`.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Ident, ItemFn, Lit, Path, Result, Token, bracketed, parse_quote};

#[derive(Default)]
struct Settings {
    devices: Option<Expr>,
    seeds: Option<Expr>,
    mask: Vec<Ident>,
    faults: Option<Expr>,
    profile: Option<Expr>,
    memory: Option<Expr>,
    root: Option<Path>,
}

/// Most devices of a simulated driver.
const MOST_DEVICES: u64 = 64;

const ALLOWED: &str = "the settings are devices, seeds, mask, faults, profile, memory and crate";

/// The test, or a compile error and the function as it was.
pub(crate) fn expand(settings: TokenStream, function: TokenStream) -> TokenStream {
    let unchanged = function.clone();
    attempt(settings, function).unwrap_or_else(|error| {
        let error = error.into_compile_error();
        quote!(#error #[allow(dead_code)] #unchanged)
    })
}

fn attempt(settings: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let settings = parse_settings(settings)?;
    let mut function: ItemFn = syn::parse2(function)?;
    check(&function)?;
    within("devices", settings.devices.as_ref(), 0, MOST_DEVICES)?;
    within("seeds", settings.seeds.as_ref(), 1, u64::MAX)?;
    let name = function.sig.ident.clone();
    let attributes = std::mem::take(&mut function.attrs);
    function.vis = syn::Visibility::Inherited;
    let root = settings.root.unwrap_or_else(|| parse_quote!(::simtile));
    let mut lines = TokenStream::new();
    if let Some(devices) = settings.devices {
        lines.extend(quote!(let spec = spec.devices(#devices);));
    }
    if let Some(seeds) = settings.seeds {
        lines.extend(quote!(let spec = spec.seeds(#seeds);));
    }
    if let Some(memory) = settings.memory {
        lines.extend(quote!(let spec = spec.memory(#memory);));
    }
    if let Some(profile) = settings.profile {
        lines.extend(quote!(let spec = spec.profile(#profile);));
    }
    if !settings.mask.is_empty() {
        let mask = &settings.mask;
        lines.extend(quote!(let spec = spec.mask(&[#(#root::driver::Entry::#mask),*]);));
    }
    if let Some(faults) = settings.faults {
        lines.extend(quote!(let spec = spec.faults(&#faults);));
    }
    let text = name.to_string();
    // The call is where the function is: a mismatch of its argument or result shows there.
    let here = Span::call_site().located_at(function.sig.span());
    let mut call = quote_spanned!(here=> #name(#root::testing::Given::given(cx)));
    if function.sig.asyncness.is_some() {
        call = quote_spanned!(here=> #root::testing::block_on(#call));
    }
    let call = quote_spanned!(here=> #root::testing::Verdict::verdict(#call));
    Ok(quote! {
        #[::core::prelude::v1::test]
        #(#attributes)*
        fn #name() {
            #function
            let spec = #root::testing::Spec::new(::core::module_path!(), #text);
            #lines
            spec.run(|cx| #call);
        }
    })
}

fn check(function: &ItemFn) -> Result<()> {
    let sig = &function.sig;
    if sig.generics.type_params().next().is_some() || sig.generics.const_params().next().is_some() {
        return Err(Error::new(sig.generics.span(), "a test has no type or const parameters"));
    }
    if sig.inputs.len() != 1 {
        return Err(Error::new(
            sig.paren_token.span.join(),
            "a simtile test takes one argument: `&Runtime` or `&TestCx`",
        ));
    }
    Ok(())
}

/// A number that is written out is looked at here; any other expression when the test runs.
fn within(name: &str, setting: Option<&Expr>, least: u64, most: u64) -> Result<()> {
    let Some(Expr::Lit(ExprLit { lit: Lit::Int(literal), .. })) = setting else { return Ok(()) };
    let fits = literal.base10_parse::<u64>().is_ok_and(|value| (least..=most).contains(&value));
    if fits {
        return Ok(());
    }
    let limit =
        if most == u64::MAX { format!("the least is {least}") } else { format!("the limit is {most}") };
    Err(Error::new(literal.span(), format!("{name} = {literal}; {limit}")))
}

fn parse_settings(tokens: TokenStream) -> Result<Settings> {
    let mut settings = Settings::default();
    let parser = syn::meta::parser(|meta| {
        let path = &meta.path;
        if path.is_ident("mask") {
            let inside;
            let _ = meta.value()?;
            bracketed!(inside in meta.input);
            settings.mask = Punctuated::<Ident, Token![,]>::parse_terminated(&inside)?.into_iter().collect();
        } else if path.is_ident("crate") {
            settings.root = Some(meta.value()?.call(Path::parse_mod_style)?);
        } else {
            let slot = match path.get_ident().map(Ident::to_string).as_deref() {
                Some("devices") => &mut settings.devices,
                Some("seeds") => &mut settings.seeds,
                Some("faults") => &mut settings.faults,
                Some("profile") => &mut settings.profile,
                Some("memory") => &mut settings.memory,
                _ => return Err(meta.error(ALLOWED)),
            };
            *slot = Some(meta.value()?.parse()?);
        }
        Ok(())
    });
    parser.parse2(tokens)?;
    Ok(settings)
}
